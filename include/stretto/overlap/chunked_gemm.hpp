#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunks.hpp"

// Matrix products of tensor and sequence parallelism, cut up together with their collective, so that rows travel while
// others are computed. Systems that do the same: Transformer Engine's userbuffers, Flux (Chang et al. 2024), PyTorch's
// asynchronous tensor parallelism; that the own rows come first or last, and so nothing is exposed at that end, is
// CommFuse's.
//
//                        forward                            backward
//   column-parallel      y = all_gather(x) W^T              dx = reduce_scatter(dy W)
//   row-parallel         y = reduce_scatter(x W^T)          dx = all_gather(dy) W
//   without sequence     y = all_reduce(x W^T)              dx = all_reduce(dy W)
//   parallelism
//
// A weight is a matrix [out, in] as layers store it, this rank's part of it; Transpose::yes multiplies by W^T, Transpose::no
// by W. rows[r]: how many rows (tokens) are rank r's share; any numbers, zero too, the same on all ranks.
//
// Computing goes on in the calling thread, communication in the stream; all members of the group call the same functions in
// the same order with the same options, each with one stream. With Stream::inline_() nothing overlaps, but the same chunks
// are computed and communicated in the same order: the results are the same bits. They depend on the chunks, since the last
// bits of a product's rows depend on how many rows it has. Chunks are fixed by shapes, types and what the job has been told
// of its links, never by a measured time; with integers small enough to be exact the results are those of the plain
// product and collective. Tensors are read and written until the function has returned, and kept alive until the stream has
// done its part even where it throws. Fastest from symmetric memory (Tensor::symmetric). In a group of one they are plain
// products. Shapes and types that do not fit throw Error(invalid_argument) before anything is communicated.
namespace stretto {

struct ChunkedGemmOptions {
  // Into how many chunks each rank's rows (all_reduce: all rows) are cut; 0: the best by chunk_count() and the cost model.
  int chunks = 0;
  // At which a rank multiplies, for that choice; 0: assumed_flops_per_second(). The same on all ranks.
  double flops_per_second = 0;
  std::string tag = {};  // in the ledger
  // What else there is to compute, a weight's gradient for example: a collective often takes longer than the product with
  // which it shares the time. Called once, in the calling thread, when this rank has multiplied all rows that it has, none
  // too, and in a group of one. Operations that it starts are the same on all ranks, as everywhere; those in this stream
  // come behind the rows. What it throws leaves y unfinished.
  std::function<void()> meanwhile = {};
};

// y [sum of rows, columns] = x of all ranks times the weight. x: [rows[rank], k], this rank's. gathered: gets x of all
// ranks, [sum of rows, k], for who needs it later (backward of the weight does); may be left out. The own rows are
// multiplied first, while others are on their way; these go round a ring, and each chunk is multiplied as soon as it is
// there. Bytes sent per rank: all rows but those of the next rank, k elements each. Memory: gathered, where it is left out.
STRETTO_API void all_gather_gemm(const Tensor& x, const std::vector<std::int64_t>& rows, const Tensor& weight,
                                 kernels::Transpose transpose, const Tensor& y, const Tensor& gathered,
                                 const Communicator& group, const Stream& stream, const ChunkedGemmOptions& options = {});

// y [rows[rank], columns] = this rank's rows of the sum over all ranks of x times the weight. x: [sum of rows, k]. What is
// for others is computed first, for rank + 1, rank + 2, ..., and each chunk leaves straight to its owner when it is ready;
// the own rows come last, while the last chunks travel. Each element is the sum in the order of ranks 0, 1, ..., accumulated
// in the accumulator type of y's type and rounded once; what travels has y's type. Bytes sent per rank: all rows but its
// own. Memory: one [sum of rows, columns] for what is computed, and the other ranks' products for the own rows.
STRETTO_API void gemm_reduce_scatter(const Tensor& x, const std::vector<std::int64_t>& rows, const Tensor& weight,
                                     kernels::Transpose transpose, const Tensor& y, const Communicator& group,
                                     const Stream& stream, const ChunkedGemmOptions& options = {});

// y [rows, columns] = the sum over all ranks of x times the weight, complete on each. x: [rows, k]. Chunks of rows are
// summed in place as soon as they are computed; the last one in the calling thread, unless there is something else to
// compute meanwhile. Bytes sent per rank: as all_reduce of y.
STRETTO_API void gemm_all_reduce(const Tensor& x, const Tensor& weight, kernels::Transpose transpose, const Tensor& y,
                                 const Communicator& group, const Stream& stream, const ChunkedGemmOptions& options = {});
// The same for who has more to compute before y is wanted: all sums are the stream's. Wait before reading y.
STRETTO_API Work start_gemm_all_reduce(const Tensor& x, const Tensor& weight, kernels::Transpose transpose, const Tensor& y,
                                       const Communicator& group, const Stream& stream,
                                       const ChunkedGemmOptions& options = {});

}  // namespace stretto
