#include "transport/shm/mapping.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "core/fail.hpp"
#include "device/memory/shared_file.hpp"
#include "stretto/settings.hpp"

namespace stretto {

void commit_memory(int file, std::size_t offset, std::size_t bytes) {
  const std::string ring = setting("STRETTO_RING_BYTES");
  commit_pages(file, offset, whole_pages(bytes),
               ring == "0" ? "set STRETTO_RING_BYTES=65536, make fewer communicators"
                           : "lower STRETTO_RING_BYTES=" + ring + ", make fewer communicators");
}

Mapping::Mapping(int file, std::size_t offset, std::size_t bytes, std::size_t first_committed) : bytes_(whole_pages(bytes)) {
  commit_memory(file, offset + first_committed, bytes - first_committed);
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    const int error = errno;
    fail(ErrorCode::unavailable, "Cannot map {} bytes of shared memory: {}.", bytes_, errno_text(error));
  }
  data_ = static_cast<std::byte*>(data);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

}  // namespace stretto
