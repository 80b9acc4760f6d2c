#pragma once
#include <cstdint>
#include <string>

#include "stretto/export.hpp"
#include "stretto/tensor.hpp"

// Values that are read but never updated, such as the base that adapters are trained on, kept in fewer bits than they are
// computed with (QLoRA; Dettmers et al. 2023). Unlike the records of quantization.hpp, which are made for one message, these
// are made once and read in every use.
namespace stretto {

enum class StoredFormat : std::uint8_t {
  plain,  // as they are computed with
  // 4.127 bits: groups of 64 with a scale, the largest |x| or little more, and for each element the nearest of 16 levels
  // times the scale (nf4_levels): the quantiles of a normal distribution. The scales of 256 groups are whole numbers of
  // 8 bits above their least one, by a step of their own ("double quantization").
  nf4,
  int8,  // 8.125 bits: groups of 256, a scale as f32 and codes from -127 to 127 (QuantizedFormat::int8)
};
STRETTO_API const char* name(StoredFormat format);                          // "plain", "nf4", "int8"
STRETTO_API StoredFormat stored_format_from_name(const std::string& name);  // throws Error naming the choices

// Elements of a record, and its bytes. The last record of a tensor is filled up with zeros.
constexpr std::int64_t stored_record_elements(StoredFormat format) {
  return format == StoredFormat::nf4 ? 64 * 256 : format == StoredFormat::int8 ? 256 : 1;
}
constexpr std::int64_t stored_record_bytes(StoredFormat format) {
  return format == StoredFormat::nf4 ? 4 + 256 + 64 * 256 / 2 : format == StoredFormat::int8 ? 4 + 256 : 0;
}
// Bytes of the records of so many elements.
constexpr std::int64_t stored_bytes(StoredFormat format, std::int64_t elements) {
  const std::int64_t each = stored_record_elements(format);
  return (elements + each - 1) / each * stored_record_bytes(format);
}

namespace kernels {

// Writes the records of `values`, a tensor of a compute type with finite elements, to `records`, u8, stored_bytes() of them.
// nf4: |x - result| is at most 0.152 times the scale, which is less than 0.8% of the spread of 256 scales above the largest
// |x| of the group. Both functions take either device, give the same bits on both, and throw Error(invalid_argument) for
// tensors that do not fit.
STRETTO_API void store_values(StoredFormat format, const Tensor& values, const Tensor& records);
// The values of records, in the type of `values`: products in f32, rounded once.
STRETTO_API void restore_values(StoredFormat format, const Tensor& records, const Tensor& values);

}  // namespace kernels
}  // namespace stretto
