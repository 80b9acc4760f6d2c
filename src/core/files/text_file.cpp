#include "core/files/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/fail.hpp"
#include "stretto/output_file.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_bytes = std::size_t{16} << 20;

struct OpenFile {
  int number;
  ~OpenFile() {
    if (number >= 0) close(number);
  }
};

}  // namespace

std::string text_of_file(const std::string& path, const std::string& what) {
  const OpenFile file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // else a FIFO blocks until it has a writer
  require(file.number >= 0, "{} cannot be read: {}.", what, errno_text(errno));
  struct stat status {};
  fstat(file.number, &status);
  require(S_ISREG(status.st_mode), "{} cannot be read: it is no regular file.", what);
  std::string text;
  for (std::size_t got = 0;;) {
    text.resize(got + (1 << 16));
    const ssize_t more = read(file.number, text.data() + got, 1 << 16);
    require(more >= 0, "{} cannot be read: {}.", what, errno_text(errno));
    got += static_cast<std::size_t>(more);
    text.resize(got);
    if (more == 0) return text;
    require(got <= most_bytes, "{} cannot be read: it has more than {} bytes.", what, most_bytes);
  }
}

bool write_text_file(const std::string& path, const std::string& text) {
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  try {
    write_output_file(path, text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace stretto
