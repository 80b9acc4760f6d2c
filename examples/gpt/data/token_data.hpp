#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.hpp"
#include "stretto/require_same.hpp"

namespace gpt {

struct DataOptions {
  std::string train;
  std::string validation;  // empty: the last tenth of the training data
  DataFormat format = DataFormat::recognised;
  std::string vocabulary_file, merges_file;  // of GPT-2's byte pair encoding; empty: samples are numbers, or bytes
};

// Training and validation data, and the window of it that each slot of a step gets: a function of the seed and of global
// numbers only, never of the layout.
class TokenData {
 public:
  // Tokens must be below `vocabulary`. Throws if either part is shorter than a sequence, or if one consists of bytes and the
  // other of tokens.
  TokenData(const DataOptions& options, std::int64_t vocabulary, std::int64_t sequence, std::uint64_t seed);

  // Both throw Error(io) for a token beyond the vocabulary.
  void training_window(std::int64_t number, std::int32_t* tokens, std::int32_t* targets) const;
  // Window i of validation_windows(), which are spread evenly over the validation data.
  void validation_window(std::int64_t i, std::int32_t* tokens, std::int32_t* targets) const;
  std::int64_t validation_windows() const;

  // Throws Error(io) for a token beyond the vocabulary among the first 64 Mi of each file. Reading those takes a fraction of
  // a second; a larger file's others are checked when a window has them.
  void check_first_tokens() const;
  bool is_bytes() const { return train_file_.is_bytes(); }
  // What must be the same on all ranks, by flag.
  std::vector<stretto::NamedValue> contents() const;
  // Returns one line that names the format of each file.
  std::string description() const;

 private:
  struct Part {
    std::int64_t first, size;
  };
  void fill(const TokenFile& file, std::int64_t at, std::int32_t* tokens, std::int32_t* targets) const;
  const TokenFile& validation_file() const { return validation_file_ ? *validation_file_ : train_file_; }

  TokenFile train_file_;
  std::optional<TokenFile> validation_file_;
  Part train_{}, validation_{};
  std::int64_t vocabulary_, sequence_;
  std::uint64_t seed_;
};

}  // namespace gpt
