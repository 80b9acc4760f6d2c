#include "overlap/tracing/atomic_file.hpp"

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/fail.hpp"

namespace stretto {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), unfinished_(path_ + ".new") {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path_, ignored);
  if (std::filesystem::is_directory(there)) {
    error_ = EISDIR;
  } else if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    // A file would take the place of the terminal or of /dev/null.
    fail(ErrorCode::io, "{} cannot be written: it is no regular file.", path_);
  } else {
    file_ = std::fopen(unfinished_.c_str(), "wb");
    note(file_ != nullptr);
  }
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(unfinished_.c_str());
}

void AtomicFile::note(bool success) {
  if (!success && error_ == 0) error_ = errno;
}

void AtomicFile::write(std::string_view text) {
  if (error_ == 0) note(std::fwrite(text.data(), 1, text.size(), file_) == text.size());
}

void AtomicFile::check() const {
  if (error_ != 0) fail(ErrorCode::io, "{} cannot be written: {}.", path_, errno_text(error_));
}

void AtomicFile::finish() {
  check();
  note(std::fclose(std::exchange(file_, nullptr)) == 0);
  if (error_ == 0) note(std::rename(unfinished_.c_str(), path_.c_str()) == 0);
  if (error_ != 0) std::remove(unfinished_.c_str());
  check();
}

}  // namespace stretto
