#pragma once
#include <cstdint>

#include "stretto/export.hpp"

// Chooses the number of chunks into which a computation and its communication are cut, so that one chunk travels while
// another is computed.
namespace stretto {

// Returns the best number of chunks, from 1 to `most`. Computation takes Tc seconds and communication Tm seconds in
// total. With k chunks, the two overlap except for the first or last chunk: 1/k of the shorter of the two is exposed.
// Each chunk costs an overhead, such as the latency of a message and a hand-over between threads. The total time is
//   T(k) = max(Tc, Tm) + min(Tc, Tm) / k + k overhead,   which is least at   k = sqrt(min(Tc, Tm) / overhead).
// The result is the better of the two whole numbers next to this k. It is 1 if Tc or Tm is zero; otherwise it is `most`
// if the overhead is zero. Times are in seconds; a negative time throws Error(invalid_argument). This is a pure
// function: ranks that pass the same arguments get the same result.
STRETTO_API int chunk_count(double compute_seconds, double communication_seconds, double overhead_seconds, int most);

// Like chunk_count(), for N blocks (from or for N other ranks) that are cut into k chunks each. Returns the k for which
// N * k is nearest to chunk_count().
STRETTO_API int chunks_per_block(double compute_seconds, double communication_seconds, double overhead_seconds, int blocks,
                                 int most_per_block);

// Rows [first, first + count).
struct Rows {
  std::int64_t first = 0, count = 0;
};
// Returns the rows of chunk i. Chunks begin at multiples of granule. The lengths of chunks differ by at most one
// granule. If there are fewer granules than chunks, some chunks are empty.
STRETTO_API Rows chunk_of(std::int64_t rows, int chunks, int i, std::int64_t granule = 1);

// The assumed cost of a chunk in addition to its message: one wake-up to hand the chunk to the stream's thread, and one
// to report that it is done.
constexpr double hand_over_seconds = 20e-6;
// The granule for matrix products, in rows. Matrix products work on blocks of rows; a product that is cut inside such a
// block is slower, and its last bits differ.
constexpr std::int64_t gemm_granule = 16;

}  // namespace stretto
