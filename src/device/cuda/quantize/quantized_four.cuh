#pragma once
#include "device/cuda/element.cuh"
#include "device/kernels/quantized_records.hpp"

// Four consecutive elements as floats, the form in which kernels of quantization hold elements. Files that include this one
// must be compiled without fusing products and sums (-fmad=false).
namespace stretto::gpu_code {

using kernels::infinity_bits;
using kernels::sign_bit;

struct Four {
  float at[4];
};

__device__ inline std::uint32_t magnitude_bits(float x) { return __float_as_uint(x) & ~sign_bit; }
__device__ inline bool is_number(float x) { return magnitude_bits(x) < infinity_bits; }
__device__ inline bool is_negative(float x) { return (__float_as_uint(x) & sign_bit) != 0; }
__device__ inline float quiet_nan() { return __uint_as_float(0x7fc00000U); }

}  // namespace stretto::gpu_code
