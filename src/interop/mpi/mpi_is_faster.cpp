#include "mpi_is_faster.hpp"

#include <numeric>

namespace stretto::mpi_door {

// Bytes of a rank's largest buffer from which the door is faster with several calls in flight: measured on 2 and 4 ranks of
// one host by perf/comparisons/peers/mpi_outstanding_loop.cpp.
constexpr std::int64_t large_reduction = 256 << 10;
constexpr std::int64_t large_movement = 4 << 20;

bool is_served_without_blocking(Kind kind) {
  switch (kind) {
    case Kind::Barrier:
    case Kind::Gather:
    case Kind::Scatter:
    case Kind::Gatherv:
    case Kind::Scatterv:
    case Kind::Alltoallv: return false;
    default: return true;
  }
}

bool mpi_is_faster(const Call& call, int ranks) {
  const auto width = static_cast<std::int64_t>(size_of(call.dtype));
  const std::int64_t shares =
      call.counts.empty() ? call.count * ranks : std::accumulate(call.counts.begin(), call.counts.end(), std::int64_t{0});
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::reduce: return call.count * width < large_reduction;
    case Collective::reduce_scatter: return shares * width < large_reduction;
    case Collective::broadcast: return call.count * width < large_movement;
    default: return shares * width < large_movement;
  }
}

}  // namespace stretto::mpi_door
