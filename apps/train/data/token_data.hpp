#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/data/token_row.hpp"
#include "apps/train/data/training_data.hpp"

namespace apps {

inline constexpr std::int64_t byte_values = 256;

struct DataOptions {
  // Names of files, folders and patterns, which are one row of tokens (TokenRow); or a mixture of several rows, as
  // Megatron-LM writes it: before the names of each row its weight.
  std::vector<std::string> train, validation;  // no validation: the last tenth of each row that is trained on
  DataFormat format = DataFormat::recognised;
  std::string vocabulary_file, merges_file;  // of GPT-2's byte pair encoding; empty: samples are numbers, or bytes
  std::string tokenizer, tokenizer_pattern;  // or a tokenizer's file or directory
  std::string chat_template;                 // of conversations; empty: the tokenizer's own
};

// Rows of tokens, of which each slot of a step gets a window. A window lies in one row: it may begin in one file and end in
// the next.
class TokenData final : public TrainingData {
 public:
  // Tokens must be below `vocabulary`. Throws if a part is shorter than a sequence, if one consists of bytes and another of
  // tokens, or for weights that are none.
  TokenData(const DataOptions& options, std::int64_t vocabulary, std::int64_t sequence, std::uint64_t seed);

  // Both throw Error(io) for a token beyond the vocabulary. In a mixture, chance decides by the weights of which row window
  // `number` is.
  void training_window(std::int64_t number, std::int32_t* tokens, std::int32_t* targets) const;
  // Window i of validation_windows(), which are spread evenly over the validation data: at most 256, of each row as many as
  // its weight says.
  void validation_window(std::int64_t i, std::int32_t* tokens, std::int32_t* targets) const;
  std::int64_t validation_windows() const override;
  stretto::FillSlot training_slots(std::int64_t consumed) const override;
  stretto::FillSlot validation_slots() const override;

  // Throws Error(io) for a token beyond the vocabulary among the first 64 Mi of each row (of several files, as many of
  // each). Reading those takes a fraction of a second; others are checked when a window has them.
  void check_first_tokens() const override;
  bool is_bytes() const override { return train_.front().row->is_bytes(); }
  std::vector<stretto::NamedValue> contents() const override;
  // Names the rows of training and of validation, for the lines that the program prints at its start.
  std::string description() const override;

 private:
  // A part of a row.
  struct Source {
    double share;  // of the windows
    std::shared_ptr<const TokenRow> row;
    std::int64_t first, size;
    std::string name;
  };
  static std::vector<Source> read(const char* flag, const std::vector<std::string>& words, DataFormat format);
  static std::string text_of(const std::vector<Source>& sources, std::string (TokenRow::*text)() const);
  std::int64_t windows(const Source& source) const;  // to validate on
  void fill(const Source& source, std::int64_t at, std::int32_t* tokens, std::int32_t* targets) const;

  std::vector<Source> train_, validation_;
  bool validates_on_tails_;
  std::int64_t vocabulary_, sequence_;
  std::uint64_t seed_;
};

}  // namespace apps
