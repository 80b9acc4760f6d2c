#include "core/files/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/fail.hpp"

namespace stretto {

InputFile::InputFile(const std::string& path, std::optional<std::uint64_t> size)
    : path_(path), number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // else a FIFO would wait for its writer
  if (number_ < 0) fail(ErrorCode::io, "Cannot open {}: {}.", path, errno_text(errno));
  size_ = size ? *size : size_now();
}

InputFile::~InputFile() { close(number_); }

std::uint64_t InputFile::size_now() const {
  struct stat status {};
  return fstat(number_, &status) == 0 && S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
}

void InputFile::read(std::uint64_t at, void* to, std::size_t bytes) const {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = pread(number_, static_cast<std::byte*>(to) + done, bytes - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io, "Cannot read {} at byte {}: {}.", path_, at + done, errno_text(errno));
    if (got == 0) {
      fail(ErrorCode::io, "{} had {} bytes and has {} now: something cut it off meanwhile; leave it as it is.", path_, size_,
           size_now());
    }
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace stretto
