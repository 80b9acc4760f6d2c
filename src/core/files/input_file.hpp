#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace stretto {

// A file of which parts are read, by as many threads as wish. It is not mapped: a file that somebody cuts off meanwhile is
// an error, not a signal.
class InputFile {
 public:
  // Throws Error(io) if the file cannot be opened. size: that of an earlier look at it, if there was one.
  explicit InputFile(const std::string& path, std::optional<std::uint64_t> size = {});
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // in bytes, when it was opened; 0 if it is no regular file
  // Throws Error(io) if the file no longer has these bytes.
  void read(std::uint64_t at, void* to, std::size_t bytes) const;

 private:
  std::uint64_t size_now() const;

  std::string path_;
  int number_;
  std::uint64_t size_;
};

}  // namespace stretto
