#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace stretto {

// The memory of all ranks, as the verifier sees it: a cell stands for one element, and is counted through all ranks and
// buffers. Contributors are kept only where a sum has to be proved, and how often an element was quantized only where any
// is.
class Cells {
 public:
  Cells() = default;
  Cells(std::int64_t count, int contributors, bool quantized)
      : words_((contributors + 63) / 64),
        last_word_(contributors % 64 == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << (contributors % 64)) - 1),
        elements_(count, unwritten),
        sets_(static_cast<std::size_t>(count) * words_),
        finished_(words_ > 0 ? count : 0),
        quantizations_(quantized ? count : 0) {}

  void set_original(std::int64_t cell, std::int64_t element, int rank) {
    elements_[cell] = element;
    if (words_ > 0) sets_[cell * words_ + rank / 64] |= std::uint64_t{1} << (rank % 64);
  }
  bool written(std::int64_t cell) const { return elements_[cell] != unwritten; }
  // What fills up the last group of a packed vector.
  void fill(std::int64_t cell) { elements_[cell] = filling; }
  bool fills(std::int64_t cell) const { return elements_[cell] == filling; }
  int quantizations(std::int64_t cell) const { return quantizations_.empty() ? 0 : quantizations_[cell]; }
  void quantize(std::int64_t cell) { ++quantizations_[cell]; }
  std::int64_t element(std::int64_t cell) const { return elements_[cell]; }
  bool finished(std::int64_t cell) const { return finished_[cell] != 0; }
  void finish(std::int64_t cell) { finished_[cell] = 1; }
  bool holds(std::int64_t cell, int rank) const { return (sets_[cell * words_ + rank / 64] >> (rank % 64) & 1U) != 0; }
  bool complete(std::int64_t cell) const {
    for (int w = 0; w < words_; ++w) {
      if (sets_[cell * words_ + w] != (w + 1 < words_ ? ~std::uint64_t{0} : last_word_)) return false;
    }
    return true;
  }

  void copy(std::int64_t source, std::int64_t target) {
    elements_[target] = elements_[source];
    if (!quantizations_.empty()) quantizations_[target] = quantizations_[source];
    if (words_ == 0) return;
    std::copy_n(&sets_[source * words_], words_, &sets_[target * words_]);
    finished_[target] = finished_[source];
  }
  // target = a with b added; false when a contribution would count twice.
  bool add(std::int64_t a, std::int64_t b, std::int64_t target) {
    std::uint64_t twice = 0;
    for (int w = 0; w < words_; ++w) {
      const std::uint64_t one = sets_[a * words_ + w];
      const std::uint64_t other = sets_[b * words_ + w];
      twice |= one & other;
      sets_[target * words_ + w] = one | other;
    }
    elements_[target] = elements_[a];
    if (!quantizations_.empty()) quantizations_[target] = std::max(quantizations_[a], quantizations_[b]);
    finished_[target] = 0;
    return twice == 0;
  }

 private:
  static constexpr std::int64_t unwritten = -1;
  static constexpr std::int64_t filling = -2;
  int words_ = 0;
  std::uint64_t last_word_ = 0;
  std::vector<std::int64_t> elements_;
  std::vector<std::uint64_t> sets_;
  std::vector<std::uint8_t> finished_;
  std::vector<std::uint8_t> quantizations_;  // the most of any contribution
};

}  // namespace stretto
