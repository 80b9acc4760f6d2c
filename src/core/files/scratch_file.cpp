#include "core/files/scratch_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

// A file without a name. On file systems without such files it has one until it is open.
int open_nameless(const std::string& directory) {
  const int file = open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string path = directory + "/stretto.XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

}  // namespace

ScratchFile::ScratchFile(std::string directory, std::int64_t bytes, IoEngine engine)
    : directory_(std::move(directory)), reads_(engine), writes_(engine) {
  buffered_ = open_nameless(directory_);
  if (buffered_ < 0) {
    fail(ErrorCode::io, "{} cannot hold a scratch file: {}. Give a directory on a disk that this process may write to.",
         directory_, std::strerror(errno));
  }
  try {
    grow(bytes);
  } catch (...) {
    close(buffered_);
    throw;
  }
  direct_ = open(fmt::format("/proc/self/fd/{}", buffered_).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
}

void ScratchFile::grow(std::int64_t bytes) {
  if (aligned(bytes) <= bytes_) return;
  if (const int error = posix_fallocate(buffered_, bytes_, aligned(bytes) - bytes_); error != 0) {
    fail(ErrorCode::io, "{} has no room for {} bytes: {}. Give a directory on a larger disk, or offload less.", directory_,
         aligned(bytes), std::strerror(error));
  }
  bytes_ = aligned(bytes);
}

ScratchFile::~ScratchFile() {
  if (mapped_ != nullptr) munmap(mapped_, static_cast<std::size_t>(bytes_));
  if (direct_ >= 0) close(direct_);
  close(buffered_);
}

void ScratchFile::read(std::int64_t offset, void* to, std::int64_t bytes) {
  if (const int error = reads_.read(descriptor(), offset, to, bytes); error != 0) {
    fail(ErrorCode::io, "The scratch file in {} cannot be read: {}.", directory_,
         error == ENODATA ? "it ends too early" : std::strerror(error));
  }
}

void ScratchFile::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  if (const int error = writes_.write(descriptor(), offset, from, bytes); error != 0) {
    fail(ErrorCode::io, "The scratch file in {} cannot be written: {}.", directory_, std::strerror(error));
  }
}

std::byte* ScratchFile::mapped() {
  if (mapped_ != nullptr || bytes_ == 0) return mapped_;
  void* const memory = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, buffered_, 0);
  if (memory == MAP_FAILED) {
    fail(ErrorCode::io, "The scratch file of {} bytes in {} cannot be mapped: {}.", bytes_, directory_,
         std::strerror(errno));
  }
  return mapped_ = static_cast<std::byte*>(memory);
}

// Not msync(), which would wait for the journal and the disk's cache as well. Without O_DIRECT all accesses go through the
// page cache, which keeps what it has room for.
void ScratchFile::forget(std::int64_t offset, std::int64_t bytes) {
  if (mapped_ == nullptr || bytes == 0) return;
  madvise(mapped_ + offset, static_cast<std::size_t>(bytes), MADV_DONTNEED);
  if (!is_direct()) return;
  constexpr unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(buffered_, offset, bytes, all) != 0) {
    fail(ErrorCode::io, "The scratch file in {} cannot be written: {}.", directory_, std::strerror(errno));
  }
  posix_fadvise(buffered_, offset, bytes, POSIX_FADV_DONTNEED);
}

}  // namespace stretto
