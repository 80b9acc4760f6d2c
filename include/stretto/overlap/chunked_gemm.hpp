#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunks.hpp"

// Matrix products of tensor and sequence parallelism, cut into chunks together with their collective, so that some rows
// travel while others are computed. Transformer Engine's userbuffers, Flux (Chang et al. 2024) and PyTorch's
// asynchronous tensor parallelism do the same. As in CommFuse, a rank's own rows are computed first (all_gather) or last
// (reduce_scatter), so that no communication is exposed at that end.
//
//                        forward                            backward
//   column-parallel      y = all_gather(x) W^T              dx = reduce_scatter(dy W)
//   row-parallel         y = reduce_scatter(x W^T)          dx = all_gather(dy) W
//   without sequence     y = all_reduce(x W^T)              dx = all_reduce(dy W)
//   parallelism
//
// A weight is this rank's part of a matrix [out, in], as layers store it. Transpose::yes multiplies by W^T,
// Transpose::no by W, or by what a GemmFactor adds to it. rows[r] is the number of rows (tokens) in rank r's share, and may
// be 0. All ranks must pass the same `rows`.
//
// Products are computed in the calling thread (on a GPU, in computation()); communication runs in the stream. All
// members of the group must call the same functions in the same order with the same options. In a group of one rank, the
// functions are plain products.
//
// Results: overlap changes no bits, because with Stream::inline_() the same chunks are computed and communicated in the
// same order. The number of chunks may change the last bits of a product. This number depends on shapes, types, options
// and the job's tuning and link settings, but never on a time measured during the run. With integers small enough to be
// exact, results equal those of the plain product and collective.
//
// Tensors are in use until the function returns: `meanwhile` must not write them, and must not read y or `gathered`. The
// function keeps the tensors alive until the stream has finished its part, even if the function throws. Symmetric memory
// (Tensor::symmetric) is fastest. If shapes or types do not fit, the functions throw Error(invalid_argument) before any
// communication.
namespace stretto {

// The dropout of what an adapter multiplies (AdapterOptions::dropout): x W^T + dropout(x) A^T B^T, and in the transposed
// product dropout(dy B A). Where B and A hold several adapters, each adapter has its own rows of A and drops elements of its
// own choice.
struct AdapterDropout {
  struct Part {
    std::int64_t first = 0, rank = 0;
    std::uint64_t number = 0;  // kernels::Dropout::number
    bool drops = true;         // false: it sees all of x
  };
  double probability = 0;
  Tensor draws = {};              // kernels::dropout()'s, for all rows of the product; empty: nothing is dropped
  std::int64_t first_column = 0;  // of the weight's slice
  std::vector<Part> parts = {};

  bool any() const { return probability > 0 && bool(draws); }
  // Of rows that begin with `first_row` of the product's.
  void drop(const Part& part, const Tensor& x, std::int64_t first_row, const Tensor& out) const;
};

// A factor multiplies rows: a weight [out, in], or W + B A with the factors of an adapter (layers/adapter.hpp). Nobody forms
// the product B A: a chunk of rows takes two products of `rank` columns or rows more, which add to its result. Chunks
// are cut as for the weight alone, so that B = 0 changes no bit.
struct STRETTO_API GemmFactor {
  Tensor weight;
  kernels::Transpose transpose = kernels::Transpose::no;
  Tensor b = {}, a = {};  // both or none: [out, rank] and [rank, in], of the weight's type
  AdapterDropout dropout = {};

  // y = x times the factor, in the calling thread (on a GPU, in computation()). x may be some rows of the product's, from
  // first_row on.
  void multiply(const Tensor& x, const Tensor& y, std::int64_t first_row = 0) const;
  // y += x times what the adapter adds, alone; nothing without one. Needs no weight.
  void add(const Tensor& x, const Tensor& y, std::int64_t first_row = 0) const;

 private:
  void add_dropped(const Tensor& x, const Tensor& y, std::int64_t first_row) const;
};

struct ChunkedGemmOptions {
  // The number of chunks of each rank's rows (all_reduce: of all rows); 0: the best by chunk_count() and the cost model.
  int chunks = 0;
  const char* tag = nullptr;  // OperationOptions::tag
  // Further computation to overlap, such as the gradient of a weight, because a collective often takes longer than its
  // own product. The function calls `meanwhile` exactly once, in the calling thread, even without rows or in a group of
  // one rank: all_gather_gemm after the product of this rank's own rows, the other functions after their last product.
  // All ranks must start the same operations in `meanwhile`; operations on the same stream run after the messages of the
  // product. If `meanwhile` throws, y is incomplete.
  std::function<void()> meanwhile = {};
};

// y [sum of rows, columns] = x of all ranks times the factor. x: [rows[rank], k], this rank's share. `gathered` receives
// x of all ranks, [sum of rows, k], for later use, such as the weight's gradient; it may be an empty Tensor, and the
// function then allocates a buffer of that size. This rank's rows are multiplied first, while the rows of other ranks go
// round a ring; each chunk is multiplied when it arrives. Each rank sends (sum of rows - rows[rank + 1]) * k elements,
// because the next rank already has its own rows.
STRETTO_API void all_gather_gemm(const Tensor& x, const std::vector<std::int64_t>& rows, const GemmFactor& factor,
                                 const Tensor& y, const Tensor& gathered, const Communicator& group, const Stream& stream,
                                 const ChunkedGemmOptions& options = {});

// y [rows[rank], columns] = this rank's rows of the sum, over all ranks, of x times the factor. x: [sum of rows, k]. The
// rows of rank + 1, rank + 2, and so on are computed first, and each chunk is sent directly to its owner when it is
// ready. This rank's own rows are computed last, while the last chunks travel. Products travel in y's type. Each element
// is summed in the order of ranks 0, 1, ..., in the accumulator type, and rounded once. Each rank sends (sum of rows -
// rows[rank]) * columns elements. Memory: [sum of rows, columns] for products to send, and [rows[rank], columns] for the
// products from each other rank.
STRETTO_API void gemm_reduce_scatter(const Tensor& x, const std::vector<std::int64_t>& rows, const GemmFactor& factor,
                                     const Tensor& y, const Communicator& group, const Stream& stream,
                                     const ChunkedGemmOptions& options = {});

// y [rows, columns] = the sum, over all ranks, of x times the factor, complete on each rank. x: [rows, k]. Each chunk of
// rows is summed in place as soon as it is computed. The last chunk is summed in the calling thread, unless
// options.meanwhile is given. Each rank sends the bytes of an all_reduce of y.
STRETTO_API void gemm_all_reduce(const Tensor& x, const GemmFactor& factor, const Tensor& y, const Communicator& group,
                                 const Stream& stream, const ChunkedGemmOptions& options = {});
// Like gemm_all_reduce, but returns before y is complete, and sums every chunk on the stream. Wait for the returned Work
// before you read y.
STRETTO_API Work start_gemm_all_reduce(const Tensor& x, const GemmFactor& factor, const Tensor& y, const Communicator& group,
                                       const Stream& stream, const ChunkedGemmOptions& options = {});

}  // namespace stretto
