#pragma once
#include <cstdint>
#include <vector>

#include "apps/train/examples/example_encoder.hpp"
#include "apps/train/examples/packing.hpp"

namespace apps {

inline constexpr std::int32_t uncounted_target = -1;

// Examples as documents in sequences: each token with the one that follows it as its target, if that counts.
class PackedExamples {
 public:
  explicit PackedExamples(std::int64_t sequence) : sequence_(sequence) {}

  // An example of which nothing counts is left out. One that is longer than a sequence is cut: a text into several
  // documents, any other behind the sequence, if something counts before it. Throws Error(io) naming the line if not.
  void add(const CountedTokens& example, bool is_text, const LineOfFile& where);
  void pack();  // after the last example

  std::int64_t sequences() const { return std::ssize(packs_); }
  // The documents of a sequence, and padding behind them, which is a document of its own (FillSlot).
  void fill(std::int64_t number, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) const;

  std::int64_t documents() const { return std::ssize(lengths_); }
  std::int64_t counted() const { return counted_; }  // tokens
  // "120 sequences of 512 tokens, 91.3% filled, of which 40.2% count; 3 examples without a token that counts are left out"
  std::string description() const;

 private:
  void add_document(const CountedTokens& example, std::size_t first, std::size_t last);

  std::int64_t sequence_;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<std::int64_t> begins_, lengths_;  // of documents
  std::vector<Pack> packs_;
  std::int64_t counted_ = 0, left_out_ = 0, cut_off_ = 0;
};

}  // namespace apps
