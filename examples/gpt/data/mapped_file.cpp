#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fail.hpp"

namespace gpt {

using stretto::ErrorCode;

MappedFile::MappedFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ErrorCode::io, "Cannot open {}: {}.", path, std::strerror(errno));
  struct stat status {};
  fstat(file, &status);
  size_ = status.st_size;
  void* data = size_ > 0 ? mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  const int error = errno;
  close(file);
  if (S_ISREG(status.st_mode) && size_ == 0) fail(ErrorCode::io, "{} is empty.", path);
  if (data == MAP_FAILED) fail(ErrorCode::io, "Cannot read {}: {}.", path, std::strerror(error));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_)); }

}  // namespace gpt
