#include "stretto/dtype.hpp"

#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/fail.hpp"

namespace stretto {

namespace {
struct Names {
  DType dtype;
  const char* names[3];  // the first is ours
};
constexpr Names dtype_names[] = {
    {DType::f64, {"f64", "fp64", "double"}},
    {DType::f32, {"f32", "fp32", "float"}},
    {DType::bf16, {"bf16", "bfloat16", "bf16"}},
    {DType::f16, {"f16", "fp16", "half"}},
    {DType::i8, {"i8", "int8", "i8"}},
    {DType::u8, {"u8", "uint8", "u8"}},
    {DType::i32, {"i32", "int32", "i32"}},
    {DType::u32, {"u32", "uint32", "u32"}},
    {DType::i64, {"i64", "int64", "i64"}},
    {DType::u64, {"u64", "uint64", "u64"}},
    {DType::f8e4m3, {"f8e4m3", "fp8_e4m3", "f8e4m3"}},
    {DType::f8e5m2, {"f8e5m2", "fp8_e5m2", "f8e5m2"}},
};
}  // namespace

const char* name(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  return i < std::size(dtype_names) ? dtype_names[i].names[0] : "unknown";
}

DType dtype_from_name(const char* name) {
  const std::string_view given = name;
  std::vector<std::string_view> known;
  for (const Names& entry : dtype_names) {
    for (const char* spelling : entry.names) {
      if (given == spelling) return entry.dtype;
    }
    known.emplace_back(entry.names[0]);
  }
  fail(ErrorCode::invalid_argument, "'{}' is no element type; choose one of {}.", given, fmt::join(known, ", "));
}

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::prod: return "prod";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::avg: return "avg";
    case ReduceOp::premul_sum: return "premul_sum";
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
