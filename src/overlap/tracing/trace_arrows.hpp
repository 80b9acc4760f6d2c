#pragma once
#include <cstdint>
#include <vector>

#include "overlap/tracing/trace_tracks.hpp"

// Arrows of a trace: from the rank that sends to the one that receives. Each rank knows its own part of an operation and to
// whom or from whom it moved bytes; where memory is read, only one of the two knows. Rank 0 puts the parts together.
namespace stretto {

// A rank's part in an operation, which has the same key on all ranks.
struct OperationPart {
  std::uint64_t key;
  std::int64_t begin, end;
  std::int32_t rank, track;
};
struct Transmission {
  std::uint64_t key;
  std::int32_t from, to;
  bool operator==(const Transmission&) const = default;
};
struct RankArrows {
  std::vector<OperationPart> parts;
  std::vector<Transmission> transmissions;
};

// Of all of a rank's operations since the trace began: the n-th collective of a communicator belongs together on all its
// members, and so do the n-th message from one rank to another on these two.
RankArrows arrows_of(int rank, const std::vector<Record>& operations, const std::vector<TraceSlice>& slices);

struct TraceArrow {
  OperationPart from, to;
};
// Of all ranks' parts. A transmission of which one rank has no part is left out: there it was not done.
std::vector<TraceArrow> pair_up(RankArrows all);

}  // namespace stretto
