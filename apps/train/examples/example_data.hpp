#pragma once
#include "apps/tokenizers/tokenizer.hpp"
#include "apps/train/data/token_data.hpp"
#include "apps/train/data/training_data.hpp"
#include "apps/train/examples/packed_examples.hpp"

namespace apps {

// Whether the data are lines of JSON: by --data-format jsonl, or by their names.
bool has_examples(const DataOptions& options);

// Files of JSON lines, which are read, turned into tokens and packed as the object is made. Each pass over the data takes
// all sequences in an order of its own, which follows from the seed.
class ExampleData final : public TrainingData {
 public:
  // Tokens must be below `vocabulary`. Throws Error(io) for a line that will not do, in one sentence that names file and
  // line, and for files of which nothing counts; Error(invalid_argument) as ExampleEncoder.
  ExampleData(const DataOptions& options, Tokenizer& tokenizer, std::int64_t vocabulary, std::int64_t sequence,
              std::uint64_t seed);

  stretto::FillSlot training_slots(std::int64_t consumed) const override;
  stretto::FillSlot validation_slots() const override;
  std::int64_t validation_windows() const override;
  void check_first_tokens() const override {}  // all were read
  bool is_bytes() const override { return false; }
  std::vector<stretto::NamedValue> contents() const override;
  std::string description() const override;

 private:
  std::int64_t training_sequence(std::int64_t number) const;

  PackedExamples train_, validation_;
  bool validates_on_tail_;
  std::uint64_t seed_;
  std::string train_content_, validation_content_, description_;
  mutable std::int64_t pass_ = -1;  // whose order this is
  mutable std::vector<std::int64_t> order_;
};

}  // namespace apps
