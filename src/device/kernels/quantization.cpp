// Quantization of elements in host memory, like reductions.cpp.
#include "device/cpu/host_kernels.hpp"
#include "device/kernels/quantize_arguments.hpp"

namespace stretto::kernels {

void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options) {
  check_quantize_arguments(format, dtype, options);
  cpu::quantize(format, dtype, x, records, count, options);
}

void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count) {
  dequantize_reduce(format, &records, 1, dtype, out, count, 1);
}

void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor) {
  check_sum_arguments(format, vector_count, dtype, divisor);
  cpu::dequantize_reduce(format, vectors, vector_count, dtype, out, count, divisor);
}

void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  check_sum_arguments(format, vector_count, DType::f32, divisor);
  check_quantize_arguments(to, DType::f32, options);
  cpu::requantize(format, vectors, vector_count, to, records, count, divisor, options);
}

}  // namespace stretto::kernels
