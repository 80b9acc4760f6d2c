// Records to elements, and sums of several vectors of records. A thread takes four consecutive elements at a time.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/quantize/dequantize_group.cuh"
#include "device/kernels/quantize_arguments.hpp"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int threads = 256;

// Stores the first `there` of four elements; all four at once if the address allows (`aligned`).
template <class T>
__device__ inline void store_rounded(void* out, std::int64_t i, const Four& v, std::int64_t there, bool aligned) {
  Pack<T, 4> pack;
#pragma unroll
  for (int j = 0; j < 4; ++j) pack.at[j] = rounded<T>(v.at[j]);
  if (aligned && there >= 4) return store<T, 4>(out, i, pack);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < there) store<T, 1>(out, i + j, Pack<T, 1>{{pack.at[j]}});
  }
}

struct Target {
  DType dtype;
  bool aligned;
  void* out;
  std::int64_t count;

  __device__ void put(std::int64_t i, const Four& v) const {
    switch (dtype) {
      case DType::f32: return store_rounded<float>(out, i, v, count - i, aligned);
      case DType::bf16: return store_rounded<bf16>(out, i, v, count - i, aligned);
      default: return store_rounded<f16>(out, i, v, count - i, aligned);
    }
  }
};

template <QuantizedFormat F>
__global__ void __launch_bounds__(threads)
    dequantize_kernel(const __grid_constant__ Pointers vectors, int vector_count, float divisor, const Target target) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads * 4;
  std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * 4;
  for (; i + step < target.count; i += 2 * step) {  // two loads in flight
    const Four here = sum_of_four<F>(vectors, vector_count, divisor, i);
    const Four there = sum_of_four<F>(vectors, vector_count, divisor, i + step);
    target.put(i, here);
    target.put(i + step, there);
  }
  if (i < target.count) target.put(i, sum_of_four<F>(vectors, vector_count, divisor, i));
}

template <QuantizedFormat F>
void launch_dequantize(const Pointers& vectors, int vector_count, std::int64_t divisor, const Target& target,
                       GpuStream stream) {
  const std::int64_t blocks = divided_up(target.count, std::int64_t{threads} * 4 * 2);
  launch("dequantize records", dequantize_kernel<F>, blocks_for(blocks, 16), threads, stream, vectors, vector_count,
         static_cast<float>(divisor), target);
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype,
                                    void* out, std::int64_t count, std::int64_t divisor, GpuStream stream) {
  kernels::check_sum_arguments(format, vector_count, dtype, divisor);
  if (count <= 0) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(out) % (4 * size_of(dtype)) == 0;
  const Target target{dtype, aligned, out, count};
  const PointersFor all(vectors, vector_count, stream);
  const auto run = [&](auto launch_format) { launch_format(all.get(), vector_count, divisor, target, stream); };
  switch (format) {
    case QuantizedFormat::int8: return run(launch_dequantize<QuantizedFormat::int8>);
    case QuantizedFormat::int4: return run(launch_dequantize<QuantizedFormat::int4>);
    case QuantizedFormat::fp8: return run(launch_dequantize<QuantizedFormat::fp8>);
    case QuantizedFormat::onebit: return run(launch_dequantize<QuantizedFormat::onebit>);
    case QuantizedFormat::none: break;
  }
}

void CudaKernels::dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count,
                             GpuStream stream) {
  dequantize_reduce(format, &records, 1, dtype, out, count, 1, stream);
}

}  // namespace stretto
