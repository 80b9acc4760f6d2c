#include "stretto/overlap/chunks.hpp"

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"

namespace stretto {

int chunk_count(double compute_seconds, double communication_seconds, double overhead_seconds, int most) {
  // The comparisons are written so that NaN fails them.
  require(
      compute_seconds >= 0 && communication_seconds >= 0 && overhead_seconds >= 0 && most >= 1,
      "No number of chunks from 1 to {} fits {} s of computing, {} s of communicating and an overhead of {} s; give times "
      "that are not negative, and at least one chunk.",
      most, compute_seconds, communication_seconds, overhead_seconds);
  const double hidden = std::min(compute_seconds, communication_seconds);
  if (hidden == 0) return 1;
  const double best = std::sqrt(hidden / overhead_seconds);
  if (!(best < most)) return most;
  const double below = std::max(1.0, std::floor(best));
  const auto seconds = [&](double chunks) { return hidden / chunks + chunks * overhead_seconds; };
  const int chunks = static_cast<int>(seconds(below + 1) < seconds(below) ? below + 1 : below);
  return std::min(chunks, most);
}

int chunks_per_block(double compute_seconds, double communication_seconds, double overhead_seconds, int blocks,
                     int most_per_block) {
  if (blocks == 0) return 1;
  require(blocks > 0 && most_per_block >= 1,
          "{} blocks cannot be cut into at most {} chunks each; give one or more of both.", blocks, most_per_block);
  const int all = chunk_count(compute_seconds, communication_seconds, overhead_seconds, blocks * most_per_block);
  return std::clamp((all + blocks / 2) / blocks, 1, most_per_block);
}

Rows chunk_of(std::int64_t rows, int chunks, int i, std::int64_t granule) {
  require(rows >= 0 && chunks >= 1 && i >= 0 && i < chunks && granule >= 1,
          "There is no chunk {} of {} of {} rows in granules of {}.", i, chunks, rows, granule);
  const std::int64_t granules = (rows + granule - 1) / granule;
  const auto begin = [&](int chunk) { return std::min(rows, granules * chunk / chunks * granule); };
  return {begin(i), begin(i + 1) - begin(i)};
}

}  // namespace stretto
