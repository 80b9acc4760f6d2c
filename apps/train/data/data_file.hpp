#pragma once
#include <cstdint>
#include <string>

namespace apps {

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
  // Of the size and the whole file, or in a large one of 16 MiB that are spread over it, so that it takes milliseconds. As
  // one of so many files, it reads that part of 16 MiB.
  std::uint64_t digest(std::size_t files = 1) const;
  int descriptor() const { return file_; }
  // Gives the descriptor back, of which a process has few. From now on each read() opens the file.
  void close();

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace apps
