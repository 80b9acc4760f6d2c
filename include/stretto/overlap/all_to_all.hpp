#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/chunks.hpp"

// All-to-all of rows, overlapped with the computation on rows that have arrived, or that are still to be sent. It serves
// the dispatch and combine of expert parallelism (DeepEP; Zhao et al. 2025), and the exchange of attention heads in
// DeepSpeed-Ulysses.
//
// send_rows[r] rows of the input go to rank r, and receive_rows[r] rows of the output come from rank r; either number
// may be 0. The rows for one rank, or from one rank, form a block. Blocks lie one after the other in rank order. Rank
// a's send_rows[b] must equal rank b's receive_rows[a]. The last dimension of a tensor is the length of its rows, and
// must be the same on all ranks. The product of all other dimensions is the number of rows.
//
// Computation runs in the calling thread. Communication runs in the stream, as messages between two ranks: over p ranks,
// in steps s = 1 to p-1, rank r sends to rank r+s and receives from rank r-s. Blocks are cut into chunks, so that
// communication is overlapped even between two ranks, where each rank receives only one block. Sender and receiver cut a
// block in the same way, which depends on its number of rows, their length and the cost model. All members must call the
// same functions in the same order with the same options. With Stream::inline_(), the same chunks are sent in the same
// order without overlap; results have the same bits. Each rank sends only its rows for other ranks.
//
// Tensors are in use until the function returns: until then, only `compute` may access them, as described below. The
// function keeps the tensors alive until the stream has finished its part, even if the computation throws.
namespace stretto {

// Some rows of a block: rows of the output from `rank`, or rows of the input for `rank`.
struct BlockRows {
  int rank = 0;
  std::int64_t first = 0;  // index of the first of these rows in the block
  Tensor rows;             // a view of the input or output
};
using ComputeRows = std::function<void(const BlockRows&)>;

struct AllToAllOptions {
  int chunks = 0;              // number of chunks per block; 0: the best by chunk_count() and the cost model
  double seconds_per_row = 0;  // computation per row, for that choice; 0: as long as a row travels. The same on all ranks
  const char* tag = nullptr;   // OperationOptions::tag
};

// Calls compute for all rows of the output: first once for this rank's own block, then for each chunk of the blocks from
// rank - 1, rank - 2, and so on, as the chunks arrive. compute is not called for blocks without rows.
STRETTO_API void all_to_all_then(const Tensor& input, const std::vector<std::int64_t>& send_rows, const Tensor& output,
                                 const std::vector<std::int64_t>& receive_rows, const ComputeRows& compute,
                                 const Communicator& group, const Stream& stream, const AllToAllOptions& options = {});

// The reverse of all_to_all_then: compute must write the rows of the input that it receives as argument. compute is
// called for each chunk of the blocks for rank + 1, rank + 2, and so on, and each chunk is sent as soon as it is
// computed. The last call is for this rank's own block, as a whole, while the last chunks travel. The output is complete
// when the function returns.
STRETTO_API void compute_then_all_to_all(const ComputeRows& compute, const Tensor& input,
                                         const std::vector<std::int64_t>& send_rows, const Tensor& output,
                                         const std::vector<std::int64_t>& receive_rows, const Communicator& group,
                                         const Stream& stream, const AllToAllOptions& options = {});

}  // namespace stretto
