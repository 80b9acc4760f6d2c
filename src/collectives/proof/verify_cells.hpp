#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace stretto {

// The memory of all ranks as the verifier sees it. A cell stands for one element. Cells are numbered through all ranks and
// buffers, and followed by a spare run for sums in progress. Contributors are kept only if a sum has to be proved, and the
// number of quantizations only if a step quantizes.
//
// Steps touch runs of cells, so the functions take runs [begin, begin + count). They process one array at a time and combine
// bits without branches, so that the compiler can use vector instructions.
class Cells {
 public:
  Cells() = default;
  Cells(std::int64_t count, int contributors, bool quantized)
      : words_((contributors + 63) / 64),
        last_word_(contributors % 64 == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << (contributors % 64)) - 1),
        quantized_(quantized),
        buffers_end_(count) {
    resize(count);
  }

  // The first cell of the spare run, which has room for count elements.
  std::int64_t spare(std::int64_t count) {
    if (buffers_end_ + count > static_cast<std::int64_t>(elements_.size())) resize(buffers_end_ + count);
    return buffers_end_;
  }

  void set_original(std::int64_t cell, std::int64_t element, int rank) {
    elements_[cell] = element;
    if (words_ > 0) sets_[cell * words_ + rank / 64] |= std::uint64_t{1} << (rank % 64);
  }
  void fill(std::int64_t cell) { elements_[cell] = filling; }
  void quantize(std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) ++quantizations_[i];
  }
  void finish(std::int64_t begin, std::int64_t count) { std::fill_n(finished_.data() + begin, count, std::uint8_t{1}); }

  // These are about one cell.
  bool written(std::int64_t cell) const { return elements_[cell] != unwritten; }
  std::int64_t element(std::int64_t cell) const { return elements_[cell]; }
  bool finished(std::int64_t cell) const { return finished_[cell] != 0; }
  bool complete(std::int64_t cell) const { return complete(cell, 1); }
  bool holds(std::int64_t cell, int rank) const { return (sets_[cell * words_ + rank / 64] >> (rank % 64) & 1U) != 0; }
  bool overlap(std::int64_t a, std::int64_t b) const { return overlap(a, b, 1); }  // whether a rank has contributed to both
  int quantizations(std::int64_t cell) const { return quantizations_.empty() ? 0 : quantizations_[cell]; }

  // These are about all cells of a run.
  bool written(std::int64_t begin, std::int64_t count) const { return (all_bits(begin, count) & unwritten) == 0; }
  bool stand_for_elements(std::int64_t begin, std::int64_t count) const {  // written, and no filling
    return (all_bits(begin, count) & (unwritten | filling)) == 0;
  }
  bool are_elements_from(std::int64_t first, std::int64_t begin, std::int64_t count) const {
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < count; ++i) differ |= elements_[begin + i] ^ (first + i);
    return differ == 0;
  }
  bool complete(std::int64_t begin, std::int64_t count) const {
    std::uint64_t missing = 0;
    for (std::int64_t i = begin; i < begin + count; ++i) {
      for (int w = 0; w < words_; ++w) missing |= sets_[i * words_ + w] ^ (w + 1 < words_ ? ~std::uint64_t{0} : last_word_);
    }
    return missing == 0;
  }
  bool all_finished(std::int64_t begin, std::int64_t count) const {
    std::uint8_t all = 1;
    for (std::int64_t i = begin; i < begin + count; ++i) all &= finished_[i];
    return all != 0;
  }
  bool none_finished(std::int64_t begin, std::int64_t count) const {
    std::uint8_t any = 0;
    for (std::int64_t i = begin; i < begin + count; ++i) any |= finished_[i];
    return any == 0;
  }

  // Whether two runs can be added, element by element: written, of the same elements, not finished, and without a
  // contributor to both.
  bool can_add(std::int64_t a, std::int64_t b, std::int64_t count) const {
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < count; ++i) differ |= elements_[a + i] ^ elements_[b + i];
    return differ == 0 && written(a, count) && none_finished(a, count) && none_finished(b, count) && !overlap(a, b, count);
  }

  // Whether the contributors of each cell of a are exactly the ranks below b's single contributor k. As binary numbers, the
  // set of the ranks below k is one less than the set of k alone. (If b had more contributors, the two sets would have one
  // in common, and can_add() would be false.)
  bool in_rank_order(std::int64_t a, std::int64_t b, std::int64_t count) const {
    std::uint64_t differ = 0;
    for (std::int64_t i = 0; words_ == 1 && i < count; ++i) differ |= (sets_[b + i] - 1) ^ sets_[a + i];
    for (std::int64_t i = 0; words_ > 1 && i < count; ++i) {
      std::uint64_t borrow = 1;
      for (int w = 0; w < words_; ++w) {
        const std::uint64_t word = sets_[(b + i) * words_ + w];
        differ |= (word - borrow) ^ sets_[(a + i) * words_ + w];
        borrow = word < borrow ? 1 : 0;
      }
    }
    return differ == 0;
  }

  // The runs must be the same or not overlap.
  void copy(std::int64_t source, std::int64_t target, std::int64_t count) {
    if (source == target) return;
    copy(elements_, source, target, count);
    if (quantized_) copy(quantizations_, source, target, count);
    if (words_ == 0) return;
    copy(sets_, source * words_, target * words_, count * words_);
    copy(finished_, source, target, count);
  }
  // The target must be a, or b, or overlap neither.
  void add(std::int64_t a, std::int64_t b, std::int64_t target, std::int64_t count) {
    if (target != a) copy(elements_, a, target, count);
    for (std::int64_t i = 0; i < count * words_; ++i) {
      sets_[target * words_ + i] = sets_[a * words_ + i] | sets_[b * words_ + i];
    }
    for (std::int64_t i = 0; quantized_ && i < count; ++i) {
      quantizations_[target + i] = std::max(quantizations_[a + i], quantizations_[b + i]);
    }
    std::fill_n(finished_.data() + target, count, std::uint8_t{0});
  }

 private:
  template <class Value>
  static void copy(std::vector<Value>& values, std::int64_t source, std::int64_t target, std::int64_t count) {
    std::copy_n(values.data() + source, count, values.data() + target);
  }
  void resize(std::int64_t count) {
    elements_.resize(count, unwritten);
    sets_.resize(static_cast<std::size_t>(count) * words_);
    if (words_ > 0) finished_.resize(count);
    if (quantized_) quantizations_.resize(count);
  }
  bool overlap(std::int64_t a, std::int64_t b, std::int64_t count) const {
    std::uint64_t both = 0;
    for (std::int64_t i = 0; i < count * words_; ++i) both |= sets_[a * words_ + i] & sets_[b * words_ + i];
    return both != 0;
  }

  std::int64_t all_bits(std::int64_t begin, std::int64_t count) const {
    std::int64_t bits = 0;
    for (std::int64_t i = begin; i < begin + count; ++i) bits |= elements_[i];
    return bits;
  }

  // Stored instead of an element's number: a bit that no number has.
  static constexpr std::int64_t unwritten = std::int64_t{1} << 62;
  static constexpr std::int64_t filling = std::int64_t{1} << 61;
  int words_ = 0;  // words in a set of contributors
  std::uint64_t last_word_ = 0;
  bool quantized_ = false;
  std::int64_t buffers_end_ = 0;
  std::vector<std::int64_t> elements_;
  std::vector<std::uint64_t> sets_;
  std::vector<std::uint8_t> finished_;
  std::vector<std::uint8_t> quantizations_;  // the maximum over all contributions
};

}  // namespace stretto
