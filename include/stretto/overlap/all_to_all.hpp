#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/chunks.hpp"

// All-to-all of rows, overlapped with the computation on rows that have arrived, or that are still to be sent. For
// dispatch and combine of expert parallelism (DeepEP; Zhao et al. 2025), and for the heads of Ulysses.
//
// send_rows[r] rows of the input go to rank r; receive_rows[r] rows of the output come from it; either may be 0. Blocks
// lie one after the other in rank order. Rank a's send_rows[b] must equal rank b's receive_rows[a]. Rows are all
// dimensions but the last, and have the same length on all ranks.
//
// Computation runs in the calling thread, communication in the stream, as messages between two ranks: in step s of p-1,
// rank r sends to r+s and receives from r-s. Blocks are cut into chunks, so that communication is overlapped even
// between two ranks, where a rank receives only one block. Both ends of a block cut it alike, by its rows, their length
// and the cost model. All members must call the same functions in the same order with the same options. With
// Stream::inline_() the same chunks are sent in the same order without overlap; results have the same bits. Bytes sent
// per rank: its rows for other ranks. Tensors are in use until the function returns. They are kept alive until the
// stream has done its part, even if the computation throws.
namespace stretto {

// Some rows of a block: of the output from a rank, or of the input for a rank.
struct BlockRows {
  int rank = 0;
  std::int64_t first = 0;  // index in the block of the first of these rows
  Tensor rows;             // a view of the input or output
};
using ComputeRows = std::function<void(const BlockRows&)>;

struct AllToAllOptions {
  int chunks = 0;              // per block; 0: the best by chunk_count() and the cost model
  double seconds_per_row = 0;  // of computation, for that choice; 0: as long as a row travels. The same on all ranks
  std::string tag = {};        // appears in the ledger
};

// Calls compute for all rows of the output: first for this rank's own block, whole, then for the blocks of rank - 1,
// rank - 2, ..., chunk by chunk as they arrive. Not called for blocks without rows.
STRETTO_API void all_to_all_then(const Tensor& input, const std::vector<std::int64_t>& send_rows, const Tensor& output,
                                 const std::vector<std::int64_t>& receive_rows, const ComputeRows& compute,
                                 const Communicator& group, const Stream& stream, const AllToAllOptions& options = {});

// The reverse: compute must write the rows of the input that it is given. It is called for the blocks of rank + 1, rank
// + 2, ..., chunk by chunk, and each chunk is sent when it is computed; this rank's own block comes last, whole, while
// the last chunks travel. When the function returns, the output is complete.
STRETTO_API void compute_then_all_to_all(const ComputeRows& compute, const Tensor& input,
                                         const std::vector<std::int64_t>& send_rows, const Tensor& output,
                                         const std::vector<std::int64_t>& receive_rows, const Communicator& group,
                                         const Stream& stream, const AllToAllOptions& options = {});

}  // namespace stretto
