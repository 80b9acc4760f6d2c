#pragma once
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

// GGUF files for tests, right and wrong ones: nothing is checked.
namespace stretto {

// The numbers of types in the format.
namespace gguf {
enum Value : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
enum Type : std::uint32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, Q4_K = 12, I32 = 26, F64 = 28, BF16 = 30 };
}  // namespace gguf

template <class T>
std::string bytes_of_number(T number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}
inline std::string gguf_string(const std::string& text) { return bytes_of_number<std::uint64_t>(text.size()) + text; }
inline std::string gguf_array(std::uint32_t type, std::uint64_t count, const std::string& elements) {
  return bytes_of_number(type) + bytes_of_number(count) + elements;
}

class GgufBytes {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;

  GgufBytes& key(const std::string& name, std::uint32_t type, const std::string& value) {
    metadata_ += gguf_string(name) + bytes_of_number(type) + value;
    ++keys_;
    return *this;
  }
  // extents: in the file's order, in which the first one is contiguous.
  GgufBytes& tensor(const std::string& name, std::initializer_list<std::uint64_t> extents, std::uint32_t type,
                    const std::string& data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    entry(name, extents, type, data_.size());
    data_ += data;
    return *this;
  }
  GgufBytes& entry(const std::string& name, std::initializer_list<std::uint64_t> extents, std::uint32_t type,
                   std::uint64_t offset) {
    table_ += gguf_string(name) + bytes_of_number(static_cast<std::uint32_t>(extents.size()));
    for (const std::uint64_t extent : extents) table_ += bytes_of_number(extent);
    table_ += bytes_of_number(type) + bytes_of_number(offset);
    ++tensors_;
    return *this;
  }
  std::string bytes() const {
    std::string all = "GGUF" + bytes_of_number(version) + bytes_of_number(tensors_) + bytes_of_number(keys_);
    all += metadata_ + table_;
    all.resize((all.size() + alignment - 1) / alignment * alignment);
    return all + data_;
  }

 private:
  std::uint64_t keys_ = 0, tensors_ = 0;
  std::string metadata_, table_, data_;
};

}  // namespace stretto
