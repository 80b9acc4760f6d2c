#include "stretto/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;

constexpr int most_links = 40;  // as in Linux
constexpr const char* ending = ".unfinished";

bool is_link(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored));
}

// Such a path names a file that a process has open: it must not be replaced.
bool is_in_proc(const fs::path& path) {
  return path.string().starts_with("/proc/") || path.string().starts_with("/dev/fd/");
}

fs::path target_of(fs::path path) {
  std::error_code error;
  for (int links = 0; is_link(path) && !is_in_proc(path) && links < most_links; ++links) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

// The kind and permissions of the file at `path`; st_mode is 0 if there is no file or stat() fails.
struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) status.st_mode = 0;
  return status;
}

bool is_replaced(const fs::path& target, const struct stat& status) {
  return !is_in_proc(target) && (status.st_mode == 0 || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

void remove_left_over(const fs::path& target) {
  std::error_code ignored;
  const fs::path directory = target.has_parent_path() ? target.parent_path() : ".";
  for (const fs::directory_entry& each : fs::directory_iterator(directory, ignored)) {
    const std::string name = each.path().filename();
    if (!name.starts_with(target.filename().string() + ".") || !name.ends_with(ending)) continue;
    const auto age = fs::file_time_type::clock::now() - each.last_write_time(ignored);
    if (!ignored && age > std::chrono::minutes(1)) fs::remove(each, ignored);
  }
}

std::string path_of(int descriptor) { return fmt::format("/proc/self/fd/{}", descriptor); }

// A file without a name, which goes with its process even where that is killed; -1 where the file system has no such files.
int open_nameless(const fs::path& target) {
  const fs::path directory = target.has_parent_path() ? target.parent_path() : ".";
  const int number = open(directory.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (number < 0 || access(path_of(number).c_str(), F_OK) == 0) return number;
  close(number);  // without /proc it could not get a name
  return -1;
}

bool give_name(int descriptor, const std::string& name) {
  return linkat(AT_FDCWD, path_of(descriptor).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string called)
    : path_(target_of(path)), called_(called.empty() ? std::move(path) : std::move(called)) {
  const struct stat status = status_of(path_);
  int number = -1;
  if (S_ISDIR(status.st_mode)) {
    errno = EISDIR;
  } else if (is_link(path_) && !is_in_proc(path_)) {
    errno = ELOOP;
  } else if (is_replaced(path_, status)) {
    remove_left_over(path_);
    unfinished_ = fmt::format("{}.{:08x}{}", path_, std::random_device{}(), ending);
    number = open_nameless(path_);
    nameless_ = number >= 0;
    if (!nameless_) number = open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (number >= 0 && status.st_mode != 0) fchmod(number, status.st_mode & 07777);
  } else {
    number = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
  }
  if (number >= 0) file_ = fdopen(number, "wb");
  note(file_ != nullptr);
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (!unfinished_.empty() && !nameless_) std::remove(unfinished_.c_str());
}

void OutputFile::note(bool success) {
  if (!success && error_ == 0) error_ = errno;
}

void OutputFile::write(std::string_view bytes) {
  if (error_ == 0) note(std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size());
}

void OutputFile::write_at_front(std::string_view bytes) {
  if (error_ == 0) note(std::fseek(file_, 0, SEEK_SET) == 0);
  write(bytes);
}

void OutputFile::check() const {
  if (error_ != 0) fail(ErrorCode::io, "{} cannot be written: {}.", called_, errno_text(error_));
}

void OutputFile::finish() {
  check();
  note(std::fflush(file_) == 0);
  // A link replaces nothing: where a file is there, this one gets a name beside it first.
  const bool named = nameless_ && error_ == 0 && give_name(fileno(file_), path_);
  if (nameless_ && !named && error_ == 0) note(give_name(fileno(file_), unfinished_));
  note(std::fclose(std::exchange(file_, nullptr)) == 0);
  if (named || unfinished_.empty()) return check();
  if (error_ == 0) note(std::rename(unfinished_.c_str(), path_.c_str()) == 0);
  if (error_ != 0) std::remove(unfinished_.c_str());
  check();
}

void write_output_file(const std::string& path, std::string_view content, const std::string& called) {
  OutputFile file(path, called);
  file.write(content);
  file.finish();
}

// Does not open a pipe: closing it again would be the end of file for its reader.
void check_output_file(const std::string& path, const std::string& called) {
  const fs::path target = target_of(path);
  if (is_replaced(target, status_of(target)) || is_link(target)) {
    OutputFile(path, called).check();
  } else if (access(target.c_str(), W_OK) != 0) {
    fail(ErrorCode::io, "{} cannot be written: {}.", called.empty() ? path : called, errno_text(errno));
  }
}

std::string followed(const std::string& path) {
  fs::path target = target_of(path);
  if (is_link(target)) fail(ErrorCode::io, "{} is a loop of symbolic links.", path);
  return target;
}

std::vector<std::filesystem::path> missing_directories(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  std::filesystem::path at = std::filesystem::absolute(directory);
  for (; !std::filesystem::exists(at, ignored) && at.has_relative_path(); at = at.parent_path()) missing.push_back(at);
  return missing;
}

}  // namespace stretto
