#include "apps/train/data/data_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

constexpr std::int64_t largest_text = std::int64_t{256} << 20;
constexpr std::int64_t digest_piece = 1 << 16;
constexpr std::int64_t digest_pieces = 256;

std::int64_t size_of(int file) {
  struct stat status {};
  fstat(file, &status);
  return status.st_size;
}

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path) {
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // else a FIFO would wait for its writer
  if (file_ < 0) fail(ErrorCode::io, "Cannot open {}: {}.", path, std::strerror(errno));
  struct stat status {};
  fstat(file_, &status);
  size_ = status.st_size;
  const bool is_regular = S_ISREG(status.st_mode);
  if (is_regular && size_ > 0) return;
  close();  // no destructor is run
  fail(ErrorCode::io, "{} is {}.", path,
       is_regular                ? "empty"
       : S_ISDIR(status.st_mode) ? "a directory; give a file"
                                 : "no regular file; copy what it gives into one");
}

DataFile::~DataFile() { close(); }

void DataFile::close() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

void DataFile::read(std::int64_t offset, std::int64_t bytes, void* out) const {
  if (file_ < 0) return DataFile(path_).read(offset, bytes, out);
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(file_, to, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io, "Cannot read {} at byte {}: {}.", path_, offset, std::strerror(errno));
    if (got == 0) {
      fail(ErrorCode::io, "{} had {} bytes and has {} now: something cut it off meanwhile; leave it as it is.", path_, size_,
           size_of(file_));
    }
    to += got;
    offset += got;
    bytes -= got;
  }
}

std::string DataFile::text() const {
  if (size_ > largest_text) fail(ErrorCode::io, "{} has {} bytes; at most {} are read.", path_, size_, largest_text);
  std::string result(static_cast<std::size_t>(size_), '\0');
  read(0, size_, result.data());
  return result;
}

std::uint64_t DataFile::digest(std::size_t files) const {
  const std::int64_t most = std::max<std::int64_t>(1, digest_pieces / static_cast<std::int64_t>(files));
  const std::int64_t pieces = std::min(most, (size_ + digest_piece - 1) / digest_piece);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(size_, digest_piece)));
  const auto bytes = static_cast<std::int64_t>(buffer.size());
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset_withSeed(&state, static_cast<std::uint64_t>(size_));
  for (std::int64_t i = 0; i < pieces; ++i) {
    // The first piece begins the file, and the last ends it; in between they overlap or leave gaps of one size.
    const std::int64_t at =
        pieces == 1 ? 0 : (size_ - bytes) / (pieces - 1) * i + (size_ - bytes) % (pieces - 1) * i / (pieces - 1);
    read(at, bytes, buffer.data());
    XXH3_64bits_update(&state, buffer.data(), buffer.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace apps
