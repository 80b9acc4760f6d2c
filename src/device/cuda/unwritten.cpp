// What has no CUDA kernel yet.
#include "core/fail.hpp"
#include "device/cuda/cuda_kernels.hpp"

namespace stretto {
namespace {

[[noreturn]] void no_kernel(const char* name) { fail(ErrorCode::unavailable, "{} has no CUDA kernel.", name); }

}  // namespace

void CudaKernels::reduce_all(ReduceOp, DType, const void* const*, int, void*, std::int64_t, std::int64_t, GpuStream) {
  no_kernel("reduce_all");
}
void CudaKernels::multiply(DType, const void*, void*, std::int64_t, double, GpuStream) { no_kernel("multiply"); }
void CudaKernels::convert(DType, const void*, DType, void*, std::int64_t, GpuStream) { no_kernel("convert"); }
void CudaKernels::quantize(QuantizedFormat, DType, const void*, void*, std::int64_t, const kernels::QuantizeOptions&,
                           GpuStream) {
  no_kernel("quantize");
}
void CudaKernels::dequantize(QuantizedFormat, const void*, DType, void*, std::int64_t, GpuStream) {
  no_kernel("dequantize");
}
void CudaKernels::dequantize_reduce(QuantizedFormat, const void* const*, int, DType, void*, std::int64_t, std::int64_t,
                                    GpuStream) {
  no_kernel("dequantize_reduce");
}
void CudaKernels::requantize(QuantizedFormat, const void* const*, int, QuantizedFormat, void*, std::int64_t, std::int64_t,
                             const kernels::QuantizeOptions&, GpuStream) {
  no_kernel("requantize");
}
void CudaKernels::add(const Tensor&, const Tensor&, const Tensor&, GpuStream) { no_kernel("add"); }
void CudaKernels::scale(const Tensor&, double, GpuStream) { no_kernel("scale"); }
double CudaKernels::sum_of_squares(const Tensor&, GpuStream) { no_kernel("sum_of_squares"); }
void CudaKernels::gelu_forward(const Tensor&, const Tensor&, GpuStream) { no_kernel("gelu_forward"); }
void CudaKernels::gelu_backward(const Tensor&, const Tensor&, const Tensor&, GpuStream) { no_kernel("gelu_backward"); }
void CudaKernels::add_bias(const Tensor&, const Tensor&, GpuStream) { no_kernel("add_bias"); }
void CudaKernels::add_bias_gelu(const Tensor&, const Tensor&, const Tensor&, GpuStream) { no_kernel("add_bias_gelu"); }
void CudaKernels::add_column_sums(const Tensor&, const Tensor&, GpuStream) { no_kernel("add_column_sums"); }
void CudaKernels::layer_norm_forward(const Tensor&, const Tensor&, const Tensor&, double, const Tensor&, const Tensor&,
                                     const Tensor&, GpuStream) {
  no_kernel("layer_norm_forward");
}
void CudaKernels::layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const Tensor&, const Tensor&, const Tensor&, GpuStream) {
  no_kernel("layer_norm_backward");
}
void CudaKernels::softmax(const Tensor&, const Tensor&, GpuStream) { no_kernel("softmax"); }
void CudaKernels::row_max(const Tensor&, const Tensor&, GpuStream) { no_kernel("row_max"); }
void CudaKernels::cross_entropy_forward(const Tensor&, const Tensor&, std::int64_t, const Tensor&, const Tensor&,
                                        const Tensor&, GpuStream) {
  no_kernel("cross_entropy_forward");
}
void CudaKernels::cross_entropy_backward(const Tensor&, const Tensor&, std::int64_t, const Tensor&, const Tensor&, double,
                                         GpuStream) {
  no_kernel("cross_entropy_backward");
}
void CudaKernels::embedding_forward(const Tensor&, std::int64_t, const Tensor&, const Tensor&, GpuStream) {
  no_kernel("embedding_forward");
}
void CudaKernels::embedding_backward(const Tensor&, std::int64_t, const Tensor&, const Tensor&, GpuStream) {
  no_kernel("embedding_backward");
}
void CudaKernels::adamw(const kernels::AdamW&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        GpuStream) {
  no_kernel("adamw");
}

}  // namespace stretto
