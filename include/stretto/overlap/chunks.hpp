#pragma once
#include <cstdint>

#include "stretto/dtype.hpp"
#include "stretto/export.hpp"

// Into how many chunks a computation and its communication are cut, so that one chunk travels while another is computed.
namespace stretto {

// The best number of chunks, from 1 to most. Cut into k chunks, computing (Tc seconds in all) and communicating (Tm) go on
// side by side, but for the first or last chunk, beside which there is nothing: it is exposed with a k-th of the shorter of
// both. Every chunk costs some overhead: a message's latency, a hand-over between threads. Together
//   T(k) = max(Tc, Tm) + min(Tc, Tm) / k + k overhead,   which is least at   k = sqrt(min(Tc, Tm) / overhead).
// Of the two whole numbers next to it the better is taken. Where either time is zero there is nothing to overlap: 1. All
// times are seconds and not negative; an overhead of zero gives most. A pure function: ranks that give it the same get the
// same.
STRETTO_API int chunk_count(double compute_seconds, double communication_seconds, double overhead_seconds, int most);

// The same where each of so many blocks (of other ranks) is cut into k chunks: k so that all chunks together come nearest to
// chunk_count().
STRETTO_API int chunks_per_block(double compute_seconds, double communication_seconds, double overhead_seconds, int blocks,
                                 int most_per_block);

// Rows [first, first + count).
struct Rows {
  std::int64_t first = 0, count = 0;
};
// Chunk i of so many: boundaries lie at multiples of granule (the last row apart), and chunks differ by one granule at most,
// the longer ones last. Where there are fewer granules than chunks, some are empty.
STRETTO_API Rows chunk_of(std::int64_t rows, int chunks, int i, std::int64_t granule = 1);

// What a chunk costs beside its message: handing it to a stream's thread, and hearing from there, are two wake-ups.
constexpr double hand_over_seconds = 20e-6;
// Matrix products take what is beneath them some rows at a time; cut elsewhere, they are slower, and their last bits differ.
constexpr std::int64_t gemm_granule = 16;
// At which one processor core multiplies matrices, in floating-point operations a second, as far as nothing better is known.
// Assumed, not measured: what is computed in chunks depends in its last bits on where these begin, and must not depend on
// how busy a machine was. That it is three times as fast makes the number of chunks wrong by the root of three at most.
STRETTO_API double assumed_flops_per_second(DType dtype);

}  // namespace stretto
