#pragma once
#include <cstdint>
#include <vector>

#include "overlap/tracing/trace_tracks.hpp"

// The arrows of a trace, from the rank that sends to the one that receives. Each rank knows its own part of an operation and
// the partners with which it moved bytes; where one rank reads another's memory, only one of the two knows of it. Rank 0
// joins the parts of all ranks.
namespace stretto {

// A rank's part in an operation. The key is the same on all ranks of the operation.
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

// `operations` must be all of the rank's operations since the trace began, because ranks match them by counting: the n-th
// collective of a communicator is one operation on all its members, and the n-th message between two ranks on both of them.
RankArrows arrows_of(int rank, const std::vector<Record>& operations, const std::vector<TraceSlice>& slices);

struct TraceArrow {
  OperationPart from, to;
};
// Joins the parts of all ranks. A transmission is left out if one of its ranks has no part: the operation was not done
// there.
std::vector<TraceArrow> pair_up(RankArrows all);

}  // namespace stretto
