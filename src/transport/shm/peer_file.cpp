#include "transport/shm/peer_file.hpp"

#include <fcntl.h>

#include <cerrno>

#include "core/fail.hpp"

namespace stretto {

int open_peer_file(std::int64_t pid, std::int64_t file, const std::string& what, int rank) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, file);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened >= 0) return opened;
  const int error = errno;
  if (error == ENOENT) {
    fail(ErrorCode::peer_lost, "Cannot open the {} of rank {}: its process {} has ended, or has left the job.", what, rank,
         pid);
  }
  fail(ErrorCode::unavailable,
       "Cannot open the {} of rank {} at {}: {}; run all ranks of a host as one user, or set STRETTO_TRANSPORT=ucx.", what,
       rank, path, errno_text(error));
}

}  // namespace stretto
