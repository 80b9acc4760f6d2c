#include "apps/tokenizers/sentencepiece/protobuf.hpp"

#include <cstring>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ErrorCode;

bool ProtobufReader::next() {
  if (rest_.empty()) return false;
  const std::uint64_t key = read_varint();
  field_ = static_cast<std::uint32_t>(key >> 3);
  wire_ = key & 7;
  std::uint64_t length = 0;
  switch (wire_) {
    case is_varint: varint_ = read_varint(); break;
    case is_64_bits: length = 8; break;
    case is_bytes: length = read_varint(); break;
    case is_32_bits: length = 4; break;
    default: fail(ErrorCode::io, "{} is damaged: field {} has the wire type {}.", path_, field_, wire_);
  }
  if (length > rest_.size()) fail_at_end();
  bytes_ = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return true;
}

std::uint64_t ProtobufReader::read_varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) fail_at_end();
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    if (byte < 0x80) return value;
  }
  fail(ErrorCode::io, "{} is damaged: behind field {} a number has more than 64 bits.", path_, field_);
}

std::uint64_t ProtobufReader::varint() const {
  expect(is_varint);
  return varint_;
}

float ProtobufReader::number() const {
  expect(is_32_bits);
  float value = 0;
  std::memcpy(&value, bytes_.data(), sizeof value);
  return value;
}

std::string_view ProtobufReader::bytes() const {
  expect(is_bytes);
  return bytes_;
}

void ProtobufReader::expect(Wire wire) const {
  if (wire_ != wire)
    fail(ErrorCode::io, "{} is damaged: field {} has the wire type {}, not {}.", path_, field_, wire_,
         static_cast<std::uint32_t>(wire));
}

void ProtobufReader::fail_at_end() const { fail(ErrorCode::io, "{} is cut off within field {}.", path_, field_); }

}  // namespace apps
