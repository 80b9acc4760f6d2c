#pragma once
#include <string>

#include "overlap/tracing/trace_arrows.hpp"
#include "overlap/tracing/trace_tracks.hpp"
#include "stretto/communicator.hpp"

namespace stretto {

// What a rank has to say.
struct RankTrace {
  int rank;  // of the job
  const TraceTracks& tracks;
  const RankArrows& arrows;
  std::uint64_t lost;  // operations
  double clock_error;  // seconds
};

// Collective: the file is rank 0's, who throws Error(io) where it cannot be written, when all ranks have said everything.
void write_trace(const Communicator& world, const RankTrace& mine, const std::string& path);

}  // namespace stretto
