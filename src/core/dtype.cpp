#include "stretto/dtype.hpp"

#include <cmath>
#include <string_view>

#include "core/fail.hpp"

namespace stretto {

const char* name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
  }
  return "unknown";
}

DType dtype_from_name(const char* name) {
  const std::string_view given = name;
  if (given == "f64" || given == "fp64" || given == "double") return DType::f64;
  if (given == "f32" || given == "fp32" || given == "float") return DType::f32;
  if (given == "bf16") return DType::bf16;
  if (given == "f16" || given == "fp16" || given == "half") return DType::f16;
  fail(ErrorCode::invalid_argument, "'{}' is no element type; choose f64, f32, bf16 or f16.", given);
}

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::prod: return "prod";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "unknown";
}

f16::f16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN
    bits = static_cast<std::uint16_t>(sign | 0x7e00U);
  } else if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    bits = static_cast<std::uint16_t>(sign | 0x7c00U);
  } else if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, in units of 2^-24
    const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 16777216.0F);
    bits = static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(units));
  } else {
    const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
  }
}

f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace stretto
