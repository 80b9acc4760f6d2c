#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunks.hpp"

// Matrix products of tensor and sequence parallelism, cut into chunks together with their collective, so that some rows
// travel while others are computed. Transformer Engine's userbuffers, Flux (Chang et al. 2024) and PyTorch's
// asynchronous tensor parallelism do the same. From CommFuse: a rank's own rows come first or last, so that nothing is
// exposed at that end.
//
//                        forward                            backward
//   column-parallel      y = all_gather(x) W^T              dx = reduce_scatter(dy W)
//   row-parallel         y = reduce_scatter(x W^T)          dx = all_gather(dy) W
//   without sequence     y = all_reduce(x W^T)              dx = all_reduce(dy W)
//   parallelism
//
// A weight is this rank's part of a matrix [out, in], as layers store it. Transpose::yes multiplies by W^T,
// Transpose::no by W. rows[r] is the number of rows (tokens) in rank r's share; it may be 0. All ranks give the same
// rows.
//
// Products are computed in the calling thread (on a GPU, in computation()); communication runs in the stream. All
// members of the group must call the same functions in the same order with the same options. In a group of one they are
// plain products.
//
// Results: overlap changes no bits, since with Stream::inline_() the same chunks are computed and communicated in the
// same order. The number of chunks may change the last bits of a product. It follows from shapes, types, options and
// the job's tuning and link settings, never from a time measured during the run. With integers small enough to be
// exact, results equal those of the plain product and collective.
//
// Tensors are in use until the function returns. They are kept alive until the stream has done its part, even if the
// function throws. Symmetric memory (Tensor::symmetric) is fastest. Shapes and types that do not fit throw
// Error(invalid_argument) before any communication.
namespace stretto {

struct ChunkedGemmOptions {
  // Number of chunks of each rank's rows (all_reduce: of all rows); 0: the best by chunk_count() and the cost model.
  int chunks = 0;
  // Rate in FLOP/s at which a rank multiplies, for that choice; 0: assumed_flops_per_second(). The same on all ranks.
  double flops_per_second = 0;
  std::string tag = {};  // appears in the ledger
  // Further computation to overlap, such as a weight's gradient: a collective often takes longer than its own product.
  // Called exactly once, in the calling thread, when this rank has multiplied all rows that it has so far; also without
  // rows and in a group of one. All ranks must start the same operations in it; those in this stream run after the
  // rows. If it throws, y is incomplete.
  std::function<void()> meanwhile = {};
};

// y [sum of rows, columns] = x of all ranks times the weight. x: [rows[rank], k], this rank's share. gathered: receives
// x of all ranks, [sum of rows, k], for later use, such as the weight's gradient; may be an empty Tensor. This rank's
// rows are multiplied first, while the others' go round a ring; each chunk is multiplied when it arrives. Each rank
// sends (sum of rows - rows[rank + 1]) x k elements, since the next rank has its own rows. If `gathered` is empty, the
// function allocates a buffer of its size.
STRETTO_API void all_gather_gemm(const Tensor& x, const std::vector<std::int64_t>& rows, const Tensor& weight,
                                 kernels::Transpose transpose, const Tensor& y, const Tensor& gathered,
                                 const Communicator& group, const Stream& stream, const ChunkedGemmOptions& options = {});

// y [rows[rank], columns] = this rank's rows of the sum over all ranks of x times the weight. x: [sum of rows, k]. The
// rows of rank + 1, rank + 2, ... are computed first, and each chunk is sent straight to its owner when it is ready;
// this rank's rows come last, while the last chunks travel. An element is summed in the order of ranks 0, 1, ...,
// accumulated in the accumulator type and rounded once; products travel in y's type. Bytes sent per rank: all rows but
// its own, in y's columns. Memory: [sum of rows, columns] for products to send, and [rows[rank], columns] for each
// other rank's products.
STRETTO_API void gemm_reduce_scatter(const Tensor& x, const std::vector<std::int64_t>& rows, const Tensor& weight,
                                     kernels::Transpose transpose, const Tensor& y, const Communicator& group,
                                     const Stream& stream, const ChunkedGemmOptions& options = {});

// y [rows, columns] = the sum over all ranks of x times the weight, complete on each rank. x: [rows, k]. Chunks of rows
// are summed in place as soon as they are computed. The last chunk is summed in the calling thread, unless
// options.meanwhile is given. Bytes sent per rank: as all_reduce of y.
STRETTO_API void gemm_all_reduce(const Tensor& x, const Tensor& weight, kernels::Transpose transpose, const Tensor& y,
                                 const Communicator& group, const Stream& stream, const ChunkedGemmOptions& options = {});
// Like gemm_all_reduce, but returns before y is complete; every chunk is summed on the stream. Wait for the Work before
// reading y.
STRETTO_API Work start_gemm_all_reduce(const Tensor& x, const Tensor& weight, kernels::Transpose transpose, const Tensor& y,
                                       const Communicator& group, const Stream& stream,
                                       const ChunkedGemmOptions& options = {});

}  // namespace stretto
