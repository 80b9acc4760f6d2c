#pragma once
#include "core/fail.hpp"
#include "stretto/kernels.hpp"

// Checks of the arguments of quantization, on the host and on a GPU.
namespace stretto::kernels {

inline void check_format(QuantizedFormat format) {
  require(format != QuantizedFormat::none && static_cast<int>(format) < quantized_formats,
          "{} is not the number of a quantized format; quantize to int8, int4, fp8 or onebit.", static_cast<int>(format));
}
inline void check_dtype(DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "Elements of {} cannot be quantized; use f32, bf16 or f16.", name(dtype));
}
inline void check_quantize_arguments(QuantizedFormat format, DType dtype, const QuantizeOptions& options) {
  check_format(format);
  check_dtype(dtype);
  require(options.rounding == Rounding::nearest_even || format == QuantizedFormat::int8 || format == QuantizedFormat::int4,
          "{} rounds to nearest only; for stochastic rounding use int8 or int4.", name(format));
}
inline void check_sum_arguments(QuantizedFormat format, int vector_count, DType dtype, std::int64_t divisor) {
  check_format(format);
  check_dtype(dtype);
  require(vector_count >= 1, "There is nothing to add in {} vectors of records; give at least one.", vector_count);
  require(divisor >= 1, "Elements cannot be divided by {}; a divisor counts ranks and is at least 1.", divisor);
}

}  // namespace stretto::kernels
