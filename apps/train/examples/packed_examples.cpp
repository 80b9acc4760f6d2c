#include "apps/train/examples/packed_examples.hpp"

#include <algorithm>

#include "apps/common/fail.hpp"

namespace apps {

void PackedExamples::add(const CountedTokens& example, bool is_text, const LineOfFile& where) {
  const auto length = static_cast<std::size_t>(sequence_), size = example.tokens.size();
  const auto first_counted = std::find(example.counts.begin() + (size > 0 ? 1 : 0), example.counts.end(), true);
  if (first_counted == example.counts.end()) {
    ++left_out_;
    return;
  }
  if (is_text) {
    for (std::size_t first = 0; first + 1 < size; first += length) {
      add_document(example, first, std::min(first + length, size - 1));
    }
    return;
  }
  const std::size_t last = std::min(length, size - 1);
  const auto prompt = static_cast<std::size_t>(first_counted - example.counts.begin());
  if (prompt > last) {
    fail(stretto::ErrorCode::io,
         "{} has {} tokens before the first one that counts, and a sequence of {} leaves no room behind them; give a larger "
         "--seq-length, or leave the line out.",
         where.text(), prompt, sequence_);
  }
  if (last < size - 1) ++cut_off_;
  add_document(example, 0, last);
}

void PackedExamples::add_document(const CountedTokens& example, std::size_t first, std::size_t last) {
  begins_.push_back(std::ssize(tokens_));
  lengths_.push_back(static_cast<std::int64_t>(last - first));
  for (std::size_t i = first; i < last; ++i) {
    tokens_.push_back(example.tokens[i]);
    targets_.push_back(example.counts[i + 1] ? example.tokens[i + 1] : uncounted_target);
    if (example.counts[i + 1]) ++counted_;
  }
}

void PackedExamples::pack() { packs_ = packed(lengths_, sequence_); }

void PackedExamples::fill(std::int64_t number, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) const {
  std::int64_t at = 0;
  for (const std::int64_t document : packs_[static_cast<std::size_t>(number)]) {
    const std::int64_t begin = begins_[static_cast<std::size_t>(document)];
    const std::int64_t length = lengths_[static_cast<std::size_t>(document)];
    std::copy_n(tokens_.begin() + begin, length, tokens + at);
    std::copy_n(targets_.begin() + begin, length, targets + at);
    std::fill_n(starts + at, length, static_cast<std::int32_t>(at));
    at += length;
  }
  std::fill(tokens + at, tokens + sequence_, 0);
  std::fill(targets + at, targets + sequence_, uncounted_target);
  std::fill(starts + at, starts + sequence_, static_cast<std::int32_t>(at));
}

std::string PackedExamples::description() const {
  const auto tokens = static_cast<double>(tokens_.size());
  std::string text =
      fmt::format("{} sequences of {} tokens, {:.1f}% filled, of which {:.1f}% count", sequences(), sequence_,
                  100 * tokens / static_cast<double>(sequences() * sequence_), 100 * static_cast<double>(counted_) / tokens);
  if (left_out_ > 0) text += fmt::format("; {} examples without a token that counts are left out", left_out_);
  if (cut_off_ > 0) text += fmt::format("; {} examples are cut off behind a sequence", cut_off_);
  return text;
}

}  // namespace apps
