#include "apps/train/data/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "apps/common/fail.hpp"

namespace apps {

MappedFile::MappedFile(const std::string& path) {
  const DataFile file(path);
  const auto size = static_cast<std::size_t>(file.size());
  void* const data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) fail(stretto::ErrorCode::io, "Cannot read {}: {}.", path, std::strerror(errno));
  text_ = {static_cast<const char*>(data), size};
}

MappedFile::~MappedFile() { munmap(const_cast<char*>(text_.data()), text_.size()); }

}  // namespace apps
