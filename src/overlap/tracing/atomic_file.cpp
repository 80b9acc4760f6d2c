#include "overlap/tracing/atomic_file.hpp"

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/fail.hpp"

namespace stretto {

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), unfinished_(path_ + ".new"), file_(std::fopen(unfinished_.c_str(), "wb")) {
  note(file_ != nullptr);
  std::error_code ignored;
  if (error_ == 0 && std::filesystem::is_directory(path_, ignored)) error_ = EISDIR;
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
