// Elements to records: a warp takes as many groups at a time as keep enough loads in flight.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/launch.cuh"
#include "device/cuda/quantize/quantize_group.cuh"
#include "device/cuda/quantize/quantize_onebit.cuh"
#include "device/cuda/quantize/quantize_whole.cuh"
#include "device/kernels/quantize_arguments.hpp"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int threads = 256;
constexpr int warps_of_block = threads / 32;
constexpr int resident_blocks = 5;  // on a multiprocessor; no more are launched, since a last wave of fewer would be slow

template <class T>
struct Elements {
  bool usual;    // quantize_whole.cuh may take them
  bool aligned;  // four may be loaded at once
  const void* x;
  float* residual;  // or none
  std::int64_t count;

  __device__ float one(std::int64_t i) const {
    if (i >= count) return 0;
    const float x_i = widened<T>(load<T, 1>(x, i).at[0]);
    return residual == nullptr ? x_i : x_i + residual[i];
  }
  __device__ Four four(std::int64_t i) const {
    if (!aligned || i + 4 > count) return {one(i), one(i + 1), one(i + 2), one(i + 3)};
    const Pack<T, 4> pack = load<T, 4>(x, i);
    Four v = {widened<T>(pack.at[0]), widened<T>(pack.at[1]), widened<T>(pack.at[2]), widened<T>(pack.at[3])};
    if (residual != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v.at[j] += residual[i + j];
    }
    return v;
  }
};

// Whole groups of aligned elements without a residual. A warp loads packs of consecutive elements and reads its columns from
// shared memory: loading columns directly would read only 32 consecutive bytes in bf16.
template <class T>
struct WholeElements {
  static constexpr int packs = 4;  // for each lane
  static constexpr int neighbours = 16 / sizeof(Raw<T>);
  static constexpr int rows = packs * neighbours;
  static constexpr int half = (rows + 1) * 16;  // with a row of padding, so that the halves of a warp use different banks
  const void* x;
  Raw<T>* staged;  // two halves

  __device__ float one(std::int64_t i) const { return widened<T>(load<T, 1>(x, i).at[0]); }
  __device__ void column(std::int64_t i, float (&column_of_lane)[rows]) const {
    const unsigned of_half = threadIdx.x % 16;
    Raw<T>* const of_this_half = staged + threadIdx.x / 16 % 2 * half;
    const std::int64_t begin = i - of_half + neighbours * of_half;
    Pack<T, neighbours> pack[packs];
#pragma unroll
    for (int p = 0; p < packs; ++p) pack[p] = load<T, neighbours>(x, begin + 16 * neighbours * p);
    __syncwarp();  // the previous column has been read
#pragma unroll
    for (int p = 0; p < packs; ++p) store(of_this_half, neighbours * (16 * p + of_half), pack[p]);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < rows; ++k) column_of_lane[k] = widened<T>(of_this_half[16 * k + of_half]);
  }
};

template <QuantizedFormat F, class T>
__global__ void __launch_bounds__(threads, resident_blocks)
    quantize_kernel(const Elements<T> elements, std::uint8_t* records, const GroupOptions options) {
  using Groups = WholeGroups<F, T>;
  __shared__ std::uint32_t staged[warps_of_block][Groups::words];
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / 32;
  const std::int64_t step = std::int64_t{gridDim.x} * warps_of_block * Groups::elements;
  for (std::int64_t first = warp * Groups::elements; first < elements.count; first += step) {
    const std::int64_t end = first + Groups::elements;
    if (elements.usual && end <= elements.count &&
        quantize_whole<F, T>(elements.x, first, records, staged[threadIdx.x / 32]))
      continue;
    for (std::int64_t i = first; i < end && i < elements.count; i += unit_elements)
      quantize_unit<F>(elements, i, elements.count, records, options);
  }
}

template <class T>
__global__ void __launch_bounds__(threads, resident_blocks)
    quantize_onebit_kernel(const Elements<T> elements, std::uint8_t* records) {
  using Whole = WholeElements<T>;
  alignas(16) __shared__ Raw<T> staged[warps_of_block][2 * Whole::half];
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / 32;
  const std::int64_t step = std::int64_t{gridDim.x} * warps_of_block * onebit_unit;
  for (std::int64_t first = warp * onebit_unit; first < elements.count; first += step) {
    if (elements.usual && first + onebit_unit <= elements.count) {
      quantize_onebit<Whole::rows>(Whole{elements.x, staged[threadIdx.x / 32]}, first, elements.count, records, nullptr);
    } else {
      quantize_onebit<2>(elements, first, elements.count, records, elements.residual);
    }
  }
}

template <QuantizedFormat F, class T>
void launch_quantize(const Elements<T>& elements, std::uint8_t* records, const GroupOptions& options, GpuStream stream) {
  const auto blocks = [&](std::int64_t elements_of_warp) {
    return blocks_for(divided_up(elements.count, elements_of_warp * warps_of_block), resident_blocks);
  };
  if constexpr (F == QuantizedFormat::onebit) {
    launch("quantize elements", quantize_onebit_kernel<T>, blocks(onebit_unit), threads, stream, elements, records);
  } else {
    launch("quantize elements", quantize_kernel<F, T>, blocks(WholeGroups<F, T>::elements), threads, stream, elements,
           records, options);
  }
}

template <class T>
void launch_quantize(QuantizedFormat format, const void* x, void* to, std::int64_t count,
                     const kernels::QuantizeOptions& options, GpuStream stream) {
  const auto is_aligned = [](const void* memory, std::size_t to_bytes) {
    return reinterpret_cast<std::uintptr_t>(memory) % to_bytes == 0;
  };
  const bool usual =
      options.rounding == Rounding::nearest_even && options.residual == nullptr && is_aligned(x, 16) && is_aligned(to, 4);
  const Elements<T> elements{usual, is_aligned(x, sizeof(Pack<T, 4>)), x, options.residual, count};
  auto* const records = static_cast<std::uint8_t*>(to);
  const GroupOptions of_groups = group_options(options);
  switch (format) {
    case QuantizedFormat::int8: return launch_quantize<QuantizedFormat::int8>(elements, records, of_groups, stream);
    case QuantizedFormat::int4: return launch_quantize<QuantizedFormat::int4>(elements, records, of_groups, stream);
    case QuantizedFormat::fp8: return launch_quantize<QuantizedFormat::fp8>(elements, records, of_groups, stream);
    case QuantizedFormat::onebit: return launch_quantize<QuantizedFormat::onebit>(elements, records, of_groups, stream);
    case QuantizedFormat::none: break;
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                           const kernels::QuantizeOptions& options, GpuStream stream) {
  kernels::check_quantize_arguments(format, dtype, options);
  if (count <= 0) return;
  switch (dtype) {
    case DType::f32: return launch_quantize<float>(format, x, records, count, options, stream);
    case DType::bf16: return launch_quantize<bf16>(format, x, records, count, options, stream);
    default: return launch_quantize<f16>(format, x, records, count, options, stream);
  }
}

}  // namespace stretto
