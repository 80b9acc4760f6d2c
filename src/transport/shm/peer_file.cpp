#include "transport/shm/peer_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "core/fail.hpp"
#include "transport/link_broken.hpp"

namespace stretto {

namespace {

// A killed process has no memory, and its files in /proc belong to root, until its parent has waited for it.
bool has_memory(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  std::uint64_t pages = 0;
  return file >> pages && pages > 0;
}

}  // namespace

int open_peer_file(std::int64_t pid, std::int64_t file, const std::string& what, int rank) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, file);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened >= 0) return opened;
  const int error = errno;
  if (lacks_descriptors(error))
    fail(ErrorCode::unavailable, "Cannot open the {} of rank {}: {}.", what, rank, errno_text(error));
  if (access("/proc/self/fd", F_OK) != 0) {
    fail(ErrorCode::unavailable,
         "Cannot open the {} of rank {}: the ranks of a host open each other's memory through /proc, which is not there; "
         "mount it.",
         what, rank);
  }
  if (error == ENOENT || !has_memory(pid)) {
    throw LinkBroken(
        rank, ErrorCode::peer_lost,
        fmt::format("Cannot open the {} of rank {}: its process {} has ended, or has left the job.", what, rank, pid));
  }
  fail(ErrorCode::unavailable,
       "Cannot open the {} of rank {} at {}: {}; run all ranks of a host as one user, or set STRETTO_TRANSPORT=ucx.", what,
       rank, path, errno_text(error));
}

}  // namespace stretto
