#include "stretto/layers/sequence.hpp"

#include <array>
#include <numeric>

#include "core/fail.hpp"
#include "stretto/overlap/ring_pass.hpp"

namespace stretto {
namespace {

constexpr std::array layouts = {SequenceLayout::zigzag, SequenceLayout::contiguous, SequenceLayout::striped};

}  // namespace

const char* name(SequenceLayout layout) {
  return layout == SequenceLayout::zigzag ? "zigzag" : layout == SequenceLayout::contiguous ? "contiguous" : "striped";
}

SequenceLayout sequence_layout_from_name(const std::string& text) {
  for (const SequenceLayout layout : layouts) {
    if (text == name(layout)) return layout;
  }
  fail(ErrorCode::invalid_argument, "'{}' is no layout of a sequence; choose zigzag, contiguous or striped.", text);
}

std::int64_t SequenceDivision::multiple() const {
  const std::int64_t halves = ring > 1 && layout == SequenceLayout::zigzag ? 2 : 1;
  return ring * std::lcm(halves, std::int64_t{ulysses});
}

void SequenceDivision::check(std::int64_t sequence) const {
  require(sequence >= 1 && sequence % multiple() == 0,
          "A sequence of {} tokens does not divide over {} ring ({}) x {} ulysses ranks; choose a multiple of {}.", sequence,
          ring, name(layout), ulysses, multiple());
}

kernels::Positions SequenceDivision::of_ring_rank(std::int64_t sequence, int ring_rank) const {
  if (ring == 1) return {};
  const std::int64_t part = sequence / ring;
  switch (layout) {
    case SequenceLayout::contiguous: return {.first = ring_rank * part};
    case SequenceLayout::striped: return {.first = ring_rank, .stride = ring};
    case SequenceLayout::zigzag: break;
  }
  const auto [early, late] = zigzag_chunks(ring_rank, ring);
  const std::int64_t chunk = part / 2;
  return {.first = early * chunk, .split = chunk, .second = late * chunk};
}

std::vector<std::int64_t> SequenceDivision::positions(std::int64_t sequence, int ring_rank, int ulysses_rank) const {
  const kernels::Positions all = of_ring_rank(sequence, ring_rank);
  std::vector<std::int64_t> result;
  const std::int64_t first = ulysses_rank * rows(sequence);
  for (std::int64_t row = first; row < first + rows(sequence); ++row) result.push_back(all.at(row));
  return result;
}

}  // namespace stretto
