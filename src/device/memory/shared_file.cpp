#include "device/memory/shared_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <limits>

#include "core/fail.hpp"
#include "stretto/settings.hpp"

namespace stretto {
namespace {

// Linux grants fallocate() page by page even beyond the machine's memory, until it kills some process for want of memory.
// Large requests are therefore compared with the available memory first.
constexpr std::size_t large = std::size_t{2} << 20;

std::size_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    std::size_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes << 10;
  }
  return std::numeric_limits<std::size_t>::max();
}

int commit(int file, std::size_t offset, std::size_t bytes) {  // returns an errno
  if (bytes >= large && bytes > available_bytes()) return ENOMEM;
  while (fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

int open_nameless_file() {
  const std::string directory = setting("STRETTO_SHM_DIR");
  const int file = directory.empty() ? memfd_create("stretto", MFD_CLOEXEC)
                                     : open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) {
    const int error = errno;
    fail(ErrorCode::unavailable, "Cannot create shared memory {}: {}{}.",
         directory.empty() ? "with memfd_create" : "in STRETTO_SHM_DIR=" + directory, errno_text(error),
         lacks_descriptors(error) ? "" : "; set STRETTO_SHM_DIR to a writable tmpfs");
  }
  return file;
}

void commit_pages(int file, std::size_t offset, std::size_t bytes, const std::string& relief) {
  const int error = commit(file, offset, bytes);
  if (error == 0) return;
  const std::string directory = setting("STRETTO_SHM_DIR");
  if (directory.empty()) {
    fail(ErrorCode::unavailable, "Cannot get {} bytes of shared memory: {}; free memory or {}.", bytes, errno_text(error),
         relief);
  }
  fail(ErrorCode::unavailable,
       "Cannot get {} bytes of shared memory in {}: {}; enlarge it (docker: --shm-size), {} or unset STRETTO_SHM_DIR.",
       bytes, directory, errno_text(error), relief);
}

}  // namespace stretto
