#include "apps/train/report/metrics_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ErrorCode;

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file_ < 0) fail_to_write();
  struct stat status {};
  const bool is_regular = fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
  if (is_regular) return;
  close(file_);  // no destructor is run
  fail(ErrorCode::io, "Cannot write {}: it is no regular file.", path);
}

MetricsFile::~MetricsFile() { close(file_); }

void MetricsFile::keep_first(const std::function<bool(const std::string&)>& keeps) {
  std::ifstream earlier(path_);
  off_t kept = 0;
  for (std::string line; std::getline(earlier, line) && !earlier.eof() && keeps(line);) {
    kept += static_cast<off_t>(line.size()) + 1;
  }
  if (ftruncate(file_, kept) != 0) fail_to_write();
}

void MetricsFile::append(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_write();
    done += static_cast<std::size_t>(written);
  }
}

void MetricsFile::fail_to_write() const { fail(ErrorCode::io, "Cannot write {}: {}.", path_, std::strerror(errno)); }

}  // namespace apps
