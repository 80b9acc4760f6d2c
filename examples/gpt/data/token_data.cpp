#include "data/token_data.hpp"

#include <algorithm>
#include <vector>

#include "fail.hpp"
#include "stretto/layers/parameter.hpp"

namespace gpt {

namespace {

constexpr std::int64_t byte_values = 256;
constexpr std::int64_t tokens_checked_first = std::int64_t{1} << 26;

}  // namespace

TokenData::TokenData(const DataOptions& options, std::int64_t vocabulary, std::int64_t sequence, std::uint64_t seed)
    : train_file_(TokenFile::open(options.train, options.format)),
      vocabulary_(vocabulary),
      sequence_(sequence),
      seed_(seed) {
  train_ = {0, train_file_.size()};
  std::string validation_name = options.validation;
  if (options.validation.empty()) {
    validation_name = "the last tenth of " + options.train;
    const std::int64_t kept = train_.size / 10;
    train_.size -= kept;
    validation_ = {train_.size, kept};
  } else {
    validation_file_ = TokenFile::open(options.validation, options.format);
    validation_ = {0, validation_file_->size()};
    require(validation_file_->is_bytes() == is_bytes(),
            "The data to validate on are not what is trained on: '{}' and '{}'; give files of one kind.",
            validation_file_->description(), train_file_.description());
  }
  require(!is_bytes() || vocabulary >= byte_values, "--vocab-size {} is below the {} values that a byte has.", vocabulary,
          byte_values);
  for (const auto& [part, name] : {std::pair{train_, options.train}, std::pair{validation_, validation_name}}) {
    require(part.size > sequence, "{} has {} tokens to use; a sequence of {} needs {}.", name, part.size, sequence,
            sequence + 1);
  }
}

void TokenData::training_window(std::int64_t number, std::int32_t* tokens, std::int32_t* targets) const {
  const double where = stretto::random_uniform(seed_, "training windows", static_cast<std::uint64_t>(number));
  fill(train_file_, static_cast<std::int64_t>(where * static_cast<double>(train_.size - sequence_)), tokens, targets);
}

void TokenData::validation_window(std::int64_t i, std::int32_t* tokens, std::int32_t* targets) const {
  const std::int64_t at = i * (validation_.size - sequence_ - 1) / std::max<std::int64_t>(1, validation_windows() - 1);
  fill(validation_file(), validation_.first + at, tokens, targets);
}

std::int64_t TokenData::validation_windows() const {
  return std::clamp<std::int64_t>(validation_.size / (sequence_ + 1), 1, 256);
}

void TokenData::fill(const TokenFile& file, std::int64_t at, std::int32_t* tokens, std::int32_t* targets) const {
  file.read(at, sequence_, vocabulary_, tokens);
  file.read(at + 1, sequence_, vocabulary_, targets);
}

void TokenData::check_first_tokens() const {
  if (is_bytes()) return;
  std::vector<std::int32_t> tokens(1 << 16);
  const auto piece = static_cast<std::int64_t>(tokens.size());
  for (const TokenFile* file : {&train_file_, &validation_file()}) {
    const std::int64_t end = std::min(file->size(), tokens_checked_first);
    for (std::int64_t at = 0; at < end; at += piece) {
      file->read(at, std::min(piece, end - at), vocabulary_, tokens.data());
    }
    if (!validation_file_) return;
  }
}

std::vector<stretto::NamedValue> TokenData::contents() const {
  std::vector<stretto::NamedValue> contents{{"--train-data", train_file_.content()}};
  if (validation_file_) contents.push_back({"--val-data", validation_file_->content()});
  return contents;
}

std::string TokenData::description() const {
  return fmt::format(
      "data {}; validation on {}", train_file_.description(),
      validation_file_ ? validation_file_->description() : fmt::format("its last {} tokens", validation_.size));
}

}  // namespace gpt
