// Elements into records: a warp takes a group, or as many as make enough loads.
#include "device/cpu/quantize_arguments.hpp"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/quantize_group.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int threads = 256;

struct Elements {
  DType dtype;
  bool aligned;  // fours may be loaded at once
  const void* x;
  const float* residual;  // or none
  std::int64_t count;

  __device__ float one(std::int64_t i) const {
    if (i >= count) return 0;
    const float x_i = load_number(dtype, x, i);
    return residual == nullptr ? x_i : x_i + residual[i];
  }
  __device__ Four four(std::int64_t i) const {
    if (!aligned || i + 4 > count) return {one(i), one(i + 1), one(i + 2), one(i + 3)};
    Four v = load_four(dtype, x, i);
    if (residual != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v.at[j] += residual[i + j];
    }
    return v;
  }
};

template <QuantizedFormat F>
__global__ void __launch_bounds__(threads)
    quantize_kernel(const Elements elements, std::uint8_t* records, const GroupOptions options) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (threads / 32);
  for (std::int64_t first = warp * unit_elements(F); first < elements.count; first += warps * unit_elements(F))
    quantize_unit<F>(elements, first, elements.count, records, options);
}

template <QuantizedFormat F>
void launch_quantize(const Elements& elements, void* records, const GroupOptions& options, GpuStream stream) {
  const std::int64_t units = divided_up(elements.count, unit_elements(F));
  launch("quantize elements", quantize_kernel<F>, blocks_for(divided_up(units, threads / 32), 16), threads, stream, elements,
         static_cast<std::uint8_t*>(records), options);
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                           const kernels::QuantizeOptions& options, GpuStream stream) {
  kernels::check_quantize_arguments(format, dtype, options);
  if (count <= 0) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % (4 * size_of(dtype)) == 0;
  const Elements elements{dtype, aligned, x, options.residual, count};
  const GroupOptions of_groups = group_options(options);
  switch (format) {
    case QuantizedFormat::int8: return launch_quantize<QuantizedFormat::int8>(elements, records, of_groups, stream);
    case QuantizedFormat::int4: return launch_quantize<QuantizedFormat::int4>(elements, records, of_groups, stream);
    case QuantizedFormat::fp8: return launch_quantize<QuantizedFormat::fp8>(elements, records, of_groups, stream);
    case QuantizedFormat::onebit: return launch_quantize<QuantizedFormat::onebit>(elements, records, of_groups, stream);
    case QuantizedFormat::none: break;
  }
}

}  // namespace stretto
