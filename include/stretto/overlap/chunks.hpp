#pragma once
#include <cstdint>

#include "stretto/dtype.hpp"
#include "stretto/export.hpp"

// The number of chunks into which a computation and its communication are cut, so that one chunk travels while another
// is computed.
namespace stretto {

// The best number of chunks, from 1 to `most`. In k chunks, computation (Tc seconds in all) and communication (Tm)
// overlap, except for the first or last chunk: a k-th of the shorter of the two is exposed. Each chunk costs an
// overhead, such as a message's latency and a hand-over between threads. In all
//   T(k) = max(Tc, Tm) + min(Tc, Tm) / k + k overhead,   which is least at   k = sqrt(min(Tc, Tm) / overhead).
// The better of the two whole numbers next to that k is returned: 1 if either time is zero, `most` if the overhead is
// zero. Times are in seconds; a negative one throws Error(invalid_argument). A pure function: ranks with the same
// arguments get the same result.
STRETTO_API int chunk_count(double compute_seconds, double communication_seconds, double overhead_seconds, int most);

// Like chunk_count(), for N blocks (of other ranks) that are cut into k chunks each: the k with which N k is nearest to
// chunk_count().
STRETTO_API int chunks_per_block(double compute_seconds, double communication_seconds, double overhead_seconds, int blocks,
                                 int most_per_block);

// Rows [first, first + count).
struct Rows {
  std::int64_t first = 0, count = 0;
};
// The rows of chunk i. Boundaries lie at multiples of granule, except for the last row. Chunks differ by at most one
// granule; the longer ones come last. If there are fewer granules than chunks, some chunks are empty.
STRETTO_API Rows chunk_of(std::int64_t rows, int chunks, int i, std::int64_t granule = 1);

// Assumed cost of a chunk in addition to its message: two wake-ups, to hand it to a stream's thread and to hear from
// there.
constexpr double hand_over_seconds = 20e-6;
// The granule for matrix products. Products work on blocks of rows; if they are cut elsewhere, they are slower and
// their last bits differ.
constexpr std::int64_t gemm_granule = 16;
// Assumed rate at which one core multiplies matrices, in FLOP/s. It is not measured, since the chunks determine the
// last bits of results, which must not depend on how busy a machine is. If the real rate is three times higher, the
// number of chunks is off by at most a factor of sqrt(3).
STRETTO_API double assumed_flops_per_second(DType dtype);

}  // namespace stretto
