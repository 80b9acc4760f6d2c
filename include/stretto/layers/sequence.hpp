#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/attention_mask.hpp"
#include "stretto/export.hpp"

namespace stretto {

// Where the ranks of a ring hold the tokens of a sequence.
enum class SequenceLayout : std::uint8_t {
  zigzag,      // the sequence is cut into 2 c chunks, and rank r of c holds chunks r and 2 c - 1 - r: causal attention gives
               // all ranks the same work in every hop (zigzag_chunks)
  contiguous,  // rank r holds the r-th of c parts
  striped,     // rank r holds tokens r, r + c, r + 2 c, and so on (Brandon et al. 2023)
};
STRETTO_API const char* name(SequenceLayout layout);  // as the enumerator
// Throws Error(invalid_argument) naming the choices.
STRETTO_API SequenceLayout sequence_layout_from_name(const std::string& text);

// How the tokens of every sequence are divided over the ranks of the ring and the ulysses axis: over the ring by layout, and
// then evenly over ulysses. All ranks hold equally many.
struct STRETTO_API SequenceDivision {
  int ring = 1, ulysses = 1;
  SequenceLayout layout = SequenceLayout::zigzag;

  std::int64_t multiple() const;  // of which the number of tokens of a sequence must be one
  // Throws Error(invalid_argument), in one sentence, if sequences of so many tokens do not divide.
  void check(std::int64_t sequence) const;
  std::int64_t rows(std::int64_t sequence) const { return sequence / ring / ulysses; }  // of each rank
  // The tokens of a ring rank, that is of all its ulysses ranks.
  kernels::Positions of_ring_rank(std::int64_t sequence, int ring_rank) const;
  // The position of each row of one rank.
  std::vector<std::int64_t> positions(std::int64_t sequence, int ring_rank, int ulysses_rank) const;
};

}  // namespace stretto
