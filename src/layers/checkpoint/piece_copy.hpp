#pragma once
#include <vector>

#include "layers/checkpoint/checkpoint_index.hpp"

namespace stretto {

// Elements that a piece of a checkpoint and a rank's range of the same parameter have in common.
struct PieceCopy {
  std::int64_t from = 0, to = 0, count = 0;  // `from` in the piece, `to` in the range
};
// `range_count` elements of the parameter's slice from element `range_first` on. Cost: the runs of both.
std::vector<PieceCopy> copies(const CheckpointPiece& piece, const Parameter& parameter, std::int64_t range_first,
                              std::int64_t range_count);

}  // namespace stretto
