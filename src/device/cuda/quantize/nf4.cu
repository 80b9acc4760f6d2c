// Values to nf4 and int8 records, and back. Values are stored once, so that kernel is simple; it takes a block for a record.
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"
#include "device/kernels/nf4.hpp"

namespace stretto {
namespace gpu_code {
namespace {

namespace nf4 = kernels::nf4;
using kernels::nf4::code_of;
using kernels::nf4::Scales;

constexpr int threads = 256;
constexpr int half = nf4::group / 2;

template <class T>
__device__ inline float number_at(const void* x, std::int64_t i, std::int64_t count) {
  return i < count ? static_cast<float>(widened<T>(load<T, 1>(x, i).at[0])) : 0.0F;
}

// Thread g has group g of the record of its block.
template <class T>
__global__ void __launch_bounds__(threads) store_nf4_kernel(const void* x, std::uint8_t* records, std::int64_t count) {
  static_assert(threads == nf4::groups);
  __shared__ float largest[threads];
  __shared__ Scales scales;
  const std::int64_t first = blockIdx.x * nf4::record_elements + threadIdx.x * nf4::group;
  std::uint8_t* const record = records + blockIdx.x * nf4::record_bytes;
  float own = 0;
  for (int i = 0; i < nf4::group; ++i) own = fmaxf(own, fabsf(number_at<T>(x, first + i, count)));
  largest[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    float least = largest[0];
    float most = least;
    for (int g = 1; g < threads; ++g) {
      if (largest[g] > 0 && (least == 0 || largest[g] < least)) least = largest[g];
      most = fmaxf(most, largest[g]);
    }
    scales = Scales::of(least, most);
    memcpy(record, &scales.least, sizeof scales.least);
    memcpy(record + 2, &scales.step, sizeof scales.step);
  }
  __syncthreads();
  const int number = scales.number_for(own);
  const float scale = scales.scale(number);
  const float inverse = scale > 0 ? 1 / scale : 0;
  record[nf4::scales_at + threadIdx.x] = static_cast<std::uint8_t>(number);
  for (int i = 0; i < half; ++i) {
    const int low = code_of(product(number_at<T>(x, first + i, count), inverse));
    const int high = code_of(product(number_at<T>(x, first + half + i, count), inverse));
    record[nf4::codes_at + threadIdx.x * half + i] = static_cast<std::uint8_t>(low | high << 4);
  }
}

// As an argument: kernels cannot take the address of a constant of the host.
struct Levels {
  float of[16];

  Levels() { std::copy_n(nf4::levels, 16, of); }
};

template <class T>
__global__ void __launch_bounds__(threads)
    restore_nf4_kernel(const __grid_constant__ Levels levels, const std::uint8_t* records, void* out, std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < count; i += stride) {
    const std::uint8_t* const record = records + i / nf4::record_elements * nf4::record_bytes;
    const auto in_record = static_cast<int>(i % nf4::record_elements);
    Scales scales;
    memcpy(&scales.least, record, sizeof scales.least);
    memcpy(&scales.step, record + 2, sizeof scales.step);
    const int g = in_record / nf4::group, in_group = in_record % nf4::group;
    const int both = record[nf4::codes_at + g * half + in_group % half];
    const float level = levels.of[in_group < half ? both & 15 : both >> 4];
    const float value = product(level, scales.scale(record[nf4::scales_at + g]));
    store<T, 1>(out, i, Pack<T, 1>{{rounded<T>(value)}});
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::store_values(StoredFormat format, const Tensor& values, const Tensor& records, GpuStream stream) {
  if (format == StoredFormat::int8)
    return quantize(QuantizedFormat::int8, values.dtype(), values.raw(), records.raw(), values.size(), {}, stream);
  const auto blocks = static_cast<unsigned>(records.size() / kernels::nf4::record_bytes);
  kernels::with_compute_type(values.dtype(), [&]<class T>(T) {
    launch("store values", store_nf4_kernel<T>, blocks, threads, stream, values.raw(), records.data<std::uint8_t>(),
           values.size());
  });
}

void CudaKernels::restore_values(StoredFormat format, const Tensor& records, const Tensor& values, GpuStream stream) {
  if (format == StoredFormat::int8)
    return dequantize(QuantizedFormat::int8, records.raw(), values.dtype(), values.raw(), values.size(), stream);
  kernels::with_compute_type(values.dtype(), [&]<class T>(T) {
    launch("restore values", restore_nf4_kernel<T>, blocks_for(divided_up(values.size(), threads), 16), threads, stream,
           Levels(), records.data<std::uint8_t>(), values.raw(), values.size());
  });
}

}  // namespace stretto
