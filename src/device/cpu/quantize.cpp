#include "core/fail.hpp"
#include "device/cpu/quantize_group.hpp"

namespace stretto::kernels {

namespace {

void check_format(QuantizedFormat format) {
  require(format != QuantizedFormat::none && static_cast<int>(format) < quantized_formats,
          "{} is the number of no format with records; quantize to int8, int4, fp8 or onebit.", static_cast<int>(format));
}
void check_dtype(DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "Elements of {} cannot be quantized; use f32, bf16 or f16.", name(dtype));
}
void check_options(QuantizedFormat format, const QuantizeOptions& options) {
  require(options.rounding == Rounding::nearest_even || format == QuantizedFormat::int8 || format == QuantizedFormat::int4,
          "{} rounds to nearest only; for stochastic rounding use int8 or int4.", name(format));
}
void check_sum(int vector_count, std::int64_t divisor) {
  require(vector_count >= 1, "There is nothing to add in {} vectors of records; give at least one.", vector_count);
  require(divisor >= 1, "Elements cannot be divided by {}; a divisor counts ranks and is at least 1.", divisor);
}

}  // namespace

void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options) {
  check_format(format);
  check_dtype(dtype);
  check_options(format, options);
  plain::quantize(format, dtype, x, records, count, options);
}

void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count) {
  dequantize_reduce(format, &records, 1, dtype, out, count, 1);
}

void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor) {
  check_format(format);
  check_dtype(dtype);
  check_sum(vector_count, divisor);
  plain::dequantize_reduce(format, vectors, vector_count, dtype, out, count, divisor);
}

void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  check_format(format);
  check_format(to);
  check_options(to, options);
  check_sum(vector_count, divisor);
  plain::requantize(format, vectors, vector_count, to, records, count, divisor, options);
}

}  // namespace stretto::kernels
