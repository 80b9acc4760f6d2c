#pragma once
#include <cstdint>
#include <string>

namespace gpt {

// A file that is read piece by piece, by as many threads as wish. Ranks of a host share its pages, and it may be larger than
// memory. It is not mapped: a file that somebody cuts off meanwhile is an error, not a signal.
class DataFile {
 public:
  // Throws Error(io) naming the path: missing, unreadable, empty, or no regular file.
  explicit DataFile(const std::string& path);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // in bytes, when it was opened
  // Throws Error(io) if the file no longer has these bytes.
  void read(std::int64_t offset, std::int64_t bytes, void* out) const;
  // The whole file. Throws Error(io) for one of more than 256 MiB, as no vocabulary or configuration has.
  std::string text() const;
  // Of the size and the whole file, or in a large one of 16 MiB that are spread over it, so that it takes milliseconds.
  std::uint64_t digest() const;
  int descriptor() const { return file_; }

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace gpt
