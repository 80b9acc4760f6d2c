#include <cmath>
#include <cstring>
#include <vector>

#include "device/cpu/quantize/quantize_plain.hpp"
#include "device/element_types.hpp"

namespace stretto::kernels {

namespace {

template <class T>
T read(const void* from, std::int64_t i = 0) {
  T value;
  std::memcpy(static_cast<void*>(&value), static_cast<const std::byte*>(from) + i * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}
template <class T>
void write(void* to, T value, std::int64_t i = 0) {
  std::memcpy(static_cast<std::byte*>(to) + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

void store_scale(QuantizedFormat format, std::uint8_t* record, float scale) {
  if (format == QuantizedFormat::int4)
    return write(record, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale) >> 16));
  write(record, scale);
}
float load_scale(QuantizedFormat format, const std::uint8_t* record) {
  return format == QuantizedFormat::int4 ? static_cast<float>(read<bf16>(record)) : read<float>(record);
}
std::int64_t scale_bytes(QuantizedFormat format) { return format == QuantizedFormat::int4 ? 2 : 4; }

// The position of the four bits of element i.
std::int64_t int4_byte(std::int64_t i) { return i % 16 * 2 + i / 32; }
int int4_shift(std::int64_t i) { return static_cast<int>(i / 16 % 2 * 4); }

float largest_finite(const float* x, std::int64_t count, bool& special) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (is_finite(x[i])) {
      largest = std::max(largest, std::fabs(x[i]));
    } else {
      special = true;
    }
  }
  return largest;
}

// The code, or its neighbour if the code would leave too much of x.
float corrected(float code, float x, float scale, float limit) {
  const float left = x - code * scale;
  if (left > limit) return code + 1;
  if (left < -limit) return code - 1;
  return code;
}
float nearest_code(float x, float scale, float inverse) {
  return corrected((x * inverse + integer_rounder) - integer_rounder, x, scale, nearest_limit(scale));
}
float stochastic_code(QuantizedFormat format, float x, float inverse, float range, const GroupOptions& options,
                      std::int64_t i) {
  const auto [fraction_bits, zero] = fixed_point(format);
  const float y = std::clamp(x * inverse + zero, zero - range, zero + range);
  const std::uint64_t number = options.first_element + static_cast<std::uint64_t>(i & ~std::int64_t{16});
  const DrawKey key(options.seed, static_cast<std::uint32_t>(number >> 32));
  const std::uint32_t hash = draw(key, static_cast<std::uint32_t>(number));
  const std::uint32_t drawn = (i & 16) == 0 ? hash & ((1U << fraction_bits) - 1) : hash >> (32 - fraction_bits);
  const auto whole = [shift = fraction_bits](std::uint32_t bits) { return static_cast<int>(bits >> shift); };
  return static_cast<float>(whole(std::bit_cast<std::uint32_t>(y) + drawn) - whole(std::bit_cast<std::uint32_t>(zero)));
}

// The code in int8 or int4, as a float.
float integer_code(QuantizedFormat format, float x, float scale, float inverse, const ScaleRule& rule,
                   const GroupOptions& options, std::int64_t i) {
  if (!is_finite(x)) {
    if (std::isnan(x)) return static_cast<float>(not_a_number(format));
    return static_cast<float>(x > 0 ? plus_infinity(format) : -plus_infinity(format));
  }
  return options.stochastic ? stochastic_code(format, x, inverse, rule.range, options, i) : nearest_code(x, scale, inverse);
}

void quantize_onebit(const float* x, std::int64_t count, std::uint8_t* record, float* residual) {
  float sums[mean_lanes] = {};
  for (std::int64_t i = 0; i < count; ++i) sums[i % mean_lanes] += std::fabs(x[i]) * mean_factor;
  const float scale = mean_of_sums(sums, count);
  store_scale(QuantizedFormat::onebit, record, scale);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool negative = is_finite(scale) && std::signbit(x[i]);
    if (negative) record[4 + i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
    if (residual != nullptr) residual[i] = is_finite(scale) ? x[i] - (negative ? -scale : scale) : 0;
  }
}

}  // namespace

float mean_of_sums(const float* sums, std::int64_t count) {
  float total[mean_lanes];
  std::copy(sums, sums + mean_lanes, total);
  for (std::int64_t half = mean_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) total[i] += total[i + half];
  }
  if (!is_finite(total[0])) return std::numeric_limits<float>::quiet_NaN();
  return std::min(total[0] * (1 / mean_factor / static_cast<float>(count)), std::numeric_limits<float>::max());
}

void quantize_group(QuantizedFormat format, const float* x, std::int64_t count, std::uint8_t* record,
                    const GroupOptions& options) {
  std::memset(record, 0, static_cast<std::size_t>(record_bytes(format)));
  if (format == QuantizedFormat::onebit) return quantize_onebit(x, count, record, options.residual);
  bool special = false;
  const float largest = largest_finite(x, count, special);
  const ScaleRule rule = scale_rule(format, special);
  const float scale = rule.scale(largest);
  const float inverse = 1 / scale;
  store_scale(format, record, special ? -scale : scale);
  std::uint8_t* const codes = record + scale_bytes(format);
  for (std::int64_t i = 0; i < count; ++i) {
    float code = 0;
    if (format == QuantizedFormat::fp8) {
      const float y = x[i] * inverse;
      if (special) {
        const f8e5m2 narrow(std::isnan(y) ? std::numeric_limits<float>::quiet_NaN() : y);  // NaN with one sign
        codes[i] = narrow.bits;
        code = static_cast<float>(narrow);
      } else {
        const f8e4m3 narrow(y);
        codes[i] = narrow.bits;
        code = static_cast<float>(narrow);
      }
    } else {
      code = integer_code(format, x[i], scale, inverse, rule, options, i);
      const auto integer = static_cast<int>(code);
      if (format == QuantizedFormat::int8) {
        codes[i] = static_cast<std::uint8_t>(integer);
      } else {
        codes[int4_byte(i)] |= static_cast<std::uint8_t>((integer & 15) << int4_shift(i));
      }
    }
    if (options.residual != nullptr) options.residual[i] = is_finite(x[i]) ? x[i] - code * scale : 0;
  }
}

void dequantize_group(QuantizedFormat format, const std::uint8_t* record, float* out) {
  const float stored = load_scale(format, record);
  const bool special = std::signbit(stored);
  const float scale = std::fabs(stored);
  const std::uint8_t* const codes = record + scale_bytes(format);
  for (std::int64_t i = 0; i < group_elements(format); ++i) {
    if (format == QuantizedFormat::onebit) {
      out[i] = scale * (((codes[i / 8] >> (i % 8)) & 1U) != 0 ? -1.0F : 1.0F);
    } else if (format == QuantizedFormat::fp8) {
      out[i] = scale * (special ? static_cast<float>(read<f8e5m2>(codes, i)) : static_cast<float>(read<f8e4m3>(codes, i)));
    } else {
      int code = static_cast<std::int8_t>(  // NOLINT(bugprone-signed-char-misuse): a signed number of 8 bits
          codes[format == QuantizedFormat::int8 ? i : int4_byte(i)]);
      if (format == QuantizedFormat::int4) code = (((code >> int4_shift(i)) & 15) ^ 8) - 8;
      out[i] = static_cast<float>(code) * scale;
      if (special && code == not_a_number(format)) out[i] = std::numeric_limits<float>::quiet_NaN();
      if (special && std::abs(code) == plus_infinity(format))
        out[i] = std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(code));
    }
  }
}

namespace plain {

void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options) {
  const std::int64_t group = group_elements(format);
  auto* record = static_cast<std::uint8_t*>(records);
  float values[largest_group];
  with_float_type(dtype, [&]<class T>(T) {
    for (std::int64_t begin = 0; begin < count; begin += group, record += record_bytes(format)) {
      const std::int64_t there = std::min(group, count - begin);
      float* const residual = options.residual == nullptr ? nullptr : options.residual + begin;
      for (std::int64_t i = 0; i < there; ++i) {
        values[i] = static_cast<float>(read<T>(x, begin + i));
        if (residual != nullptr) values[i] += residual[i];
      }
      quantize_group(format, values, there, record,
                     {options.rounding == Rounding::stochastic, options.seed,
                      options.first_element + static_cast<std::uint64_t>(begin), residual});
    }
  });
}

void add_group(QuantizedFormat format, const void* const* vectors, int vector_count, std::int64_t offset,
               std::int64_t divisor, float* out) {
  const std::int64_t group = group_elements(format);
  float term[largest_group];
  for (int vector = 0; vector < vector_count; ++vector) {
    dequantize_group(format, static_cast<const std::uint8_t*>(vectors[vector]) + offset, term);
    for (std::int64_t i = 0; i < group; ++i) out[i] = vector == 0 ? term[i] : out[i] + term[i];
  }
  if (divisor == 1) return;
  for (std::int64_t i = 0; i < group; ++i) out[i] /= static_cast<float>(divisor);
}

void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor) {
  const std::int64_t group = group_elements(format);
  float sum[largest_group];
  with_float_type(dtype, [&]<class T>(T) {
    for (std::int64_t begin = 0; begin < count; begin += group) {
      plain::add_group(format, vectors, vector_count, packed_bytes(format, begin), divisor, sum);
      for (std::int64_t i = 0; i < std::min(group, count - begin); ++i) write(out, static_cast<T>(sum[i]), begin + i);
    }
  });
}

void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count) {
  plain::dequantize_reduce(format, &records, 1, dtype, out, count, 1);
}

void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  std::vector<float> sum(static_cast<std::size_t>(count));
  plain::dequantize_reduce(format, vectors, vector_count, DType::f32, sum.data(), count, divisor);
  plain::quantize(to, DType::f32, sum.data(), records, count, options);
}

}  // namespace plain

}  // namespace stretto::kernels
