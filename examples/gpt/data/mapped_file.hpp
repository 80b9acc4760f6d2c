#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpt {

// A file in memory, read only. Ranks of a host share its pages, and it may be larger than memory.
class MappedFile {
 public:
  // Throws Error(io) naming the path: missing, unreadable or empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), static_cast<std::size_t>(size_)}; }

 private:
  const std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace gpt
