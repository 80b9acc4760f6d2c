#include "apps/train/run/directory_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "apps/common/fail.hpp"
#include "stretto/output_file.hpp"

namespace apps {

using stretto::ErrorCode;
namespace fs = std::filesystem;

namespace {

constexpr int looks = 20;
constexpr std::chrono::milliseconds between_looks(100);

}  // namespace

DirectoryLock::DirectoryLock(const std::string& flag, const std::string& directory)
    : made_(stretto::missing_directories(directory)), path_(fmt::format("{}/.{}.lock", directory, flag.substr(2))) {
  std::error_code error;
  fs::create_directories(directory, error);
  bool taken = false;
  for (int look = 0; !error && !taken && look < looks; ++look) {
    if (look > 0) std::this_thread::sleep_for(between_looks);
    taken = take();
    if (file_ < 0) error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    std::error_code ignored;
    for (const fs::path& each : made_) fs::remove(each, ignored);
    fail(ErrorCode::io, "Cannot write to {} {}: {}.", flag, directory, error.message());
  }
  if (taken) {
    char host[256]{};
    gethostname(host, sizeof host - 1);
    const std::string holder = fmt::format("process {} on {}", getpid(), host);
    if (ftruncate(file_, 0) == 0) std::ignore = write(file_, holder.data(), holder.size());
    return;
  }
  close(file_);  // no destructor is run
  std::string holder;
  std::getline(std::ifstream(path_), holder);
  fail(ErrorCode::io, "Another job, {}, writes {} {}; wait for its end, or give each job a directory of its own.", holder,
       flag, directory);
}

// The holder may have removed the file between open() and flock(): a lock on it would keep nobody out.
bool DirectoryLock::take() {
  if (file_ >= 0) close(file_);
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_ < 0 || (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)) return false;
  struct stat mine {
  }, there{};
  return fstat(file_, &mine) == 0 && stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino;
}

DirectoryLock::~DirectoryLock() {
  unlink(path_.c_str());
  close(file_);
  std::error_code ignored;
  for (const fs::path& each : made_) fs::remove(each, ignored);
}

}  // namespace apps
