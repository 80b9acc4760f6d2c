#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/chunks.hpp"

// All-to-all of rows beside the computation on what has arrived, or on what is still to leave: dispatch and combine of
// expert parallelism (DeepEP; Zhao et al. 2025), the heads of Ulysses.
//
// send_rows[r] rows of the input are for rank r, receive_rows[r] rows of the output come from it; blocks lie one after the
// other in rank order. A rank's send_rows for another are that one's receive_rows from it. Any numbers, zero too. Rows are
// all dimensions but the last, and equally long everywhere.
//
// Computing goes on in the calling thread, communication in the stream, in messages between two ranks: in step s of p-1,
// rank r sends to r+s and receives from r-s. Blocks are cut into chunks, so that at two ranks, too, with one block to
// receive, something is computed while something travels. Both ends cut a block alike, by its rows, the length of a row and
// what the cost model says of the links. All members call the same functions in the same order with the same options. With
// Stream::inline_() the same chunks go in the same order, one after the other: the same bits. Bytes sent per rank: its rows
// for others. Tensors are in use until the function has returned, and kept alive until the stream has done its part even
// where the computation throws.
namespace stretto {

// Some rows of a block: of the output that came from a rank, or of the input for it.
struct BlockRows {
  int rank = 0;
  std::int64_t first = 0;  // of these rows, in the block
  Tensor rows;             // a view of the input or output
};
using ComputeRows = std::function<void(const BlockRows&)>;

struct AllToAllOptions {
  int chunks = 0;              // of each block; 0: the best by chunk_count() and the cost model
  double seconds_per_row = 0;  // of computing, for that choice; 0: as long as a row travels. The same on all ranks.
  std::string tag = {};        // in the ledger
};

// Calls compute for all rows of the output: first for the own block, whole, then for blocks of rank - 1, rank - 2, ...,
// chunk by chunk as they arrive. Never for no rows.
STRETTO_API void all_to_all_then(const Tensor& input, const std::vector<std::int64_t>& send_rows, const Tensor& output,
                                 const std::vector<std::int64_t>& receive_rows, const ComputeRows& compute,
                                 const Communicator& group, const Stream& stream, const AllToAllOptions& options = {});

// The way back: compute writes all rows of the input, for rank + 1, rank + 2, ..., chunk by chunk, each of which leaves as
// soon as it is there; the own block comes last, whole, while the last chunks travel. When it returns, the output is
// complete.
STRETTO_API void compute_then_all_to_all(const ComputeRows& compute, const Tensor& input,
                                         const std::vector<std::int64_t>& send_rows, const Tensor& output,
                                         const std::vector<std::int64_t>& receive_rows, const Communicator& group,
                                         const Stream& stream, const AllToAllOptions& options = {});

}  // namespace stretto
