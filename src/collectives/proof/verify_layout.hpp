#pragma once
#include <array>

#include "collectives/plan/collective_contract.hpp"
#include "collectives/proof/verify_accesses.hpp"
#include "core/fail.hpp"

namespace stretto {

// The places of all ranks' buffers in the verifier's cells; in place, input and output overlap.
class Layout {
 public:
  Layout(const std::vector<Plan>& plans, const CollectiveContract& promise, bool in_place) : ranks_(plans.size()) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      const int r = static_cast<int>(rank);
      Extent& input = ranks_[rank][static_cast<std::size_t>(Buffer::input)];
      Extent& output = ranks_[rank][static_cast<std::size_t>(Buffer::output)];
      Extent& scratch = ranks_[rank][static_cast<std::size_t>(Buffer::scratch)];
      input = {cells_, promise.inputs(r)};
      output = {cells_ + input.count, promise.outputs(r)};
      if (in_place) {
        input.begin = cells_ + promise.input_begin_in_place(r);
        output.begin = cells_ + promise.output_begin_in_place(r);
      }
      scratch = {std::max(input.begin + input.count, output.begin + output.count), plans[rank].scratch_count};
      cells_ = scratch.begin + scratch.count;
      for (std::size_t format = 0; format < quantized_formats; ++format) {
        ranks_[rank][plain_buffers + format] = {cells_, plans[rank].packed_counts[format]};
        cells_ += plans[rank].packed_counts[format];
      }
    }
  }

  std::int64_t cells() const { return cells_; }
  // Elements of the memory that the slice lies in.
  std::int64_t room(int rank, const Slice& slice) const { return extent(rank, slice).count; }
  std::int64_t cell_of(int rank, const Slice& slice) const { return extent(rank, slice).begin + slice.offset; }
  // Packed data occupies whole groups. Plain slices are by far the most frequent, and are spared a division.
  static std::int64_t cells_of(const Slice& slice) {
    return slice.format == QuantizedFormat::none ? slice.count : whole_groups(slice.format, slice.count);
  }
  Range range_of(int rank, const Slice& slice) const {
    const std::int64_t begin = cell_of(rank, slice);
    return {begin, begin + cells_of(slice)};
  }
  Range range_of(int rank, Buffer plain) const {  // all of it
    return range_of(rank, {plain, 0, room(rank, {plain})});
  }

  // For error messages.
  std::string text_of(std::int64_t cell) const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::size_t buffer = 0; buffer < plain_buffers; ++buffer) {
        const std::int64_t i = cell - ranks_[rank][buffer].begin;
        const char* const names[] = {"input", "output", "scratch"};
        if (i >= 0 && i < ranks_[rank][buffer].count) {
          return fmt::format("element {} of rank {}'s {}", i, rank, names[buffer]);
        }
      }
    }
    return "an element of no buffer";
  }

 private:
  struct Extent {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };
  const Extent& extent(int rank, const Slice& slice) const {
    const bool packed = slice.buffer == Buffer::packed;
    return ranks_[rank]
                 [packed ? plain_buffers + static_cast<std::size_t>(slice.format) : static_cast<std::size_t>(slice.buffer)];
  }

  static constexpr std::size_t plain_buffers = 3;
  std::vector<std::array<Extent, plain_buffers + quantized_formats>> ranks_;  // by Buffer, then by format
  std::int64_t cells_ = 0;
};

}  // namespace stretto
