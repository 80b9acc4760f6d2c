#pragma once
#include <array>

#include "collectives/plan/plan_builder.hpp"

// The packed memory of quantized collectives: the cut of blocks into pieces, and the pieces that lie side by side.
namespace stretto::plans {

// The cut of blocks into pieces: the same for the format in which they are quantized and for the format of their sums.
class GroupCut {
 public:
  explicit GroupCut(const PlanRequest& request)
      : shares_(Shares::of(request)),
        pieces_(request.method.pieces),
        grain_(std::max(group_elements(request.quantized), group_elements(request.quantized_result))) {}

  const Shares& shares() const { return shares_; }
  int pieces() const { return pieces_; }
  // The offset of a piece in its block; `piece` may be pieces(), one after the last.
  std::int64_t first(int block, int piece) const {
    const std::int64_t length = shares_.length(block);
    return std::min(length, part_begin((length + grain_ - 1) / grain_, pieces_, piece) * grain_);
  }
  std::int64_t length(int block, int piece) const { return first(block, piece + 1) - first(block, piece); }

 private:
  Shares shares_;
  int pieces_;
  std::int64_t grain_;
};

// The elements in use in each format's memory.
class PackedMemory {
 public:
  std::int64_t take(QuantizedFormat format, std::int64_t count) {
    std::int64_t& used = used_[static_cast<std::size_t>(format)];
    used += count;
    return used - count;
  }
  void claim(PlanBuilder& plan) const {
    for (std::size_t format = 0; format < used_.size(); ++format) {
      plan.use_packed(static_cast<QuantizedFormat>(format), used_[format]);
    }
  }

 private:
  std::array<std::int64_t, quantized_formats> used_ = {};
};

// Blocks that travel together. For each piece, the blocks lie side by side and form one message. There may be several such
// vectors, whose blocks are added to each other.
class PackedLayout {
 public:
  // blocks: in rising order.
  PackedLayout(const GroupCut& cut, QuantizedFormat format, std::vector<int> blocks, int vectors, PackedMemory& memory)
      : cut_(&cut), format_(format), blocks_(std::move(blocks)) {
    for (int piece = 0; piece < cut.pieces(); ++piece) {
      std::int64_t length = 0;
      for (const int block : blocks_) {
        offsets_.push_back(length);
        length += whole_groups(format, cut.length(block, piece));
      }
      lengths_.push_back(length);
      begins_.push_back(memory.take(format, vectors * length));
    }
  }

  Slice message(int piece, int vector = 0) const { return packed(format_, begin(piece, vector), lengths_[piece]); }
  Slice block(int block, int piece, int vector = 0) const {
    const auto at = std::lower_bound(blocks_.begin(), blocks_.end(), block) - blocks_.begin();
    const std::int64_t offset = offsets_[static_cast<std::size_t>(piece) * blocks_.size() + at];
    return packed(format_, begin(piece, vector) + offset, cut_->length(block, piece));
  }
  // The distance from one vector to the next.
  std::int64_t apart(int piece) const { return lengths_[piece]; }

 private:
  std::int64_t begin(int piece, int vector) const { return begins_[piece] + vector * lengths_[piece]; }

  const GroupCut* cut_;
  QuantizedFormat format_;
  std::vector<int> blocks_;
  std::vector<std::int64_t> begins_;   // by piece: of the first vector
  std::vector<std::int64_t> lengths_;  // by piece: of one vector
  std::vector<std::int64_t> offsets_;  // by piece and block
};

}  // namespace stretto::plans
