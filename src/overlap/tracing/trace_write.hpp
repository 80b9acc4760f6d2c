#pragma once
#include <string>

#include "overlap/tracing/trace_arrows.hpp"
#include "overlap/tracing/trace_tracks.hpp"
#include "stretto/communicator.hpp"

namespace stretto {

// One rank's contribution to the file.
struct RankTrace {
  int rank;  // in the job
  const TraceTracks& tracks;
  const RankArrows& arrows;
  std::uint64_t lost;  // operations
  double clock_error;  // seconds
};

// Collective. Rank 0 writes the file; where it cannot, rank 0 throws Error(io) after all ranks have sent their parts.
void write_trace(const Communicator& world, const RankTrace& mine, const std::string& path);

}  // namespace stretto
