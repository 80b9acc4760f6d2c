#include "stretto/dtype.hpp"

#include <fmt/format.h>
#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/fail.hpp"
#include "core/narrow_floats.hpp"

namespace stretto {

namespace {
struct Names {
  DType dtype;
  const char* names[3];  // the first is the one that name() returns, the second that of training_name()
};
constexpr Names dtype_names[] = {
    {DType::f64, {"f64", "fp64", "double"}},
    {DType::f32, {"f32", "fp32", "float"}},
    {DType::bf16, {"bf16", "bf16", "bfloat16"}},
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

const char* name_of(DType dtype, std::size_t which) {
  const auto i = static_cast<std::size_t>(dtype);
  return i < std::size(dtype_names) ? dtype_names[i].names[which] : "unknown";
}
}  // namespace

const char* name(DType dtype) { return name_of(dtype, 0); }
const char* training_name(DType dtype) { return name_of(dtype, 1); }

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

namespace {
template <class T>
std::uint32_t narrowed(float value) {
  using Format = FloatFormatBits<T>;
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> Format::sign_shift) & Format::sign;
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > Format::infinity) return sign | Format::nan;
  if (magnitude >= Format::first_too_large_bits) return sign | Format::too_large;
  if (magnitude < Format::first_normal) {
    return sign | static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) / Format::unit));
  }
  const std::uint32_t odd = (magnitude >> Format::dropped_bits) & 1U;
  const std::uint32_t rounded = magnitude + (1U << (Format::dropped_bits - 1)) - 1 + odd;
  return sign | ((rounded - Format::rebias) >> Format::dropped_bits);
}

template <class T>
float widened(std::uint32_t bits) {
  using Format = FloatFormatBits<T>;
  const std::uint32_t sign = (bits & Format::sign) << Format::sign_shift;
  const std::uint32_t magnitude = bits & (Format::sign - 1);
  if (magnitude >> Format::mantissa_bits == 0) {  // zero or subnormal
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * Format::unit));
  }
  const std::uint32_t number = (magnitude << Format::dropped_bits) + Format::rebias;
  return std::bit_cast<float>(sign | (magnitude >= Format::first_special ? number | Format::infinity : number));
}
}  // namespace

f16::f16(float value) : bits(static_cast<std::uint16_t>(narrowed<f16>(value))) {}
f16::operator float() const { return widened<f16>(bits); }

f8e4m3::f8e4m3(float value) : bits(static_cast<std::uint8_t>(narrowed<f8e4m3>(value))) {}
f8e4m3::operator float() const { return widened<f8e4m3>(bits); }

f8e5m2::f8e5m2(float value) : bits(static_cast<std::uint8_t>(narrowed<f8e5m2>(value))) {}
f8e5m2::operator float() const { return widened<f8e5m2>(bits); }

}  // namespace stretto
