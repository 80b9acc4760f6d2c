#include "text_data.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fail.hpp"
#include "stretto/layers/parameter.hpp"

namespace gpt {

using stretto::ErrorCode;

TextFile::TextFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ErrorCode::io, "Cannot open the text {}: {}.", path, std::strerror(errno));
  struct stat status {};
  fstat(file, &status);
  size_ = status.st_size;
  void* data = size_ > 0 ? mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  const int error = errno;
  close(file);
  if (S_ISREG(status.st_mode) && size_ == 0) fail(ErrorCode::io, "The text {} is empty.", path);
  if (data == MAP_FAILED) fail(ErrorCode::io, "Cannot read the text {}: {}.", path, std::strerror(error));
  data_ = static_cast<const unsigned char*>(data);
}

TextFile::~TextFile() { munmap(const_cast<unsigned char*>(data_), static_cast<std::size_t>(size_)); }

TextData::TextData(const std::string& train_path, const std::string& validation_path, std::int64_t sequence,
                   std::uint64_t seed)
    : train_file_(std::make_shared<TextFile>(train_path)), sequence_(sequence), seed_(seed) {
  train_ = {train_file_->data(), train_file_->size()};
  std::string validation_name = validation_path;
  if (validation_path.empty()) {
    validation_name = "the last tenth of " + train_path;
    const std::int64_t kept = train_.size / 10;
    validation_ = {train_.data + (train_.size - kept), kept};
    train_.size -= kept;
  } else {
    validation_file_ = std::make_shared<TextFile>(validation_path);
    validation_ = {validation_file_->data(), validation_file_->size()};
  }
  for (const auto& [part, name] : {std::pair{train_, train_path}, std::pair{validation_, validation_name}}) {
    require(part.size > sequence, "The text {} has {} bytes to use; a sequence of {} needs {}.", name, part.size, sequence,
            sequence + 1);
  }
}

void TextData::training_window(std::int64_t number, std::int32_t* tokens, std::int32_t* targets) const {
  const double where = stretto::random_uniform(seed_, "training windows", static_cast<std::uint64_t>(number));
  fill(train_, static_cast<std::int64_t>(where * static_cast<double>(train_.size - sequence_)), tokens, targets);
}

void TextData::validation_window(std::int64_t i, std::int32_t* tokens, std::int32_t* targets) const {
  fill(validation_, i * (validation_.size - sequence_ - 1) / std::max<std::int64_t>(1, validation_windows() - 1), tokens,
       targets);
}

std::int64_t TextData::validation_windows() const {
  return std::clamp<std::int64_t>(validation_.size / (sequence_ + 1), 1, 256);
}

void TextData::fill(const TextSpan& part, std::int64_t at, std::int32_t* tokens, std::int32_t* targets) const {
  for (std::int64_t i = 0; i < sequence_; ++i) {
    tokens[i] = part.data[at + i];
    targets[i] = part.data[at + i + 1];
  }
}

}  // namespace gpt
