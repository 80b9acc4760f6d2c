#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace apps {

// Reads a message of Protocol Buffers field by field, of the wire types that files have today: varint, 64 bits, bytes, 32
// bits. Throws Error(io), which names the file, where the bytes end within a field.
class ProtobufReader {
 public:
  // Path and bytes must outlive the reader.
  ProtobufReader(const std::string& path, std::string_view bytes) : path_(path), rest_(bytes) {}

  // Goes on to the next field; false at the message's end.
  bool next();
  std::uint32_t field() const { return field_; }

  // The field's value. Throws Error(io) for a field of another wire type.
  std::uint64_t varint() const;
  float number() const;  // a float, of 32 bits
  std::string_view bytes() const;

 private:
  enum Wire : std::uint32_t { is_varint = 0, is_64_bits = 1, is_bytes = 2, is_32_bits = 5 };
  std::uint64_t read_varint();
  void expect(Wire wire) const;
  [[noreturn]] void fail_at_end() const;

  const std::string& path_;
  std::string_view rest_, bytes_;
  std::uint32_t field_ = 0, wire_ = 0;
  std::uint64_t varint_ = 0;
};

}  // namespace apps
