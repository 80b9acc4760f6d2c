#pragma once
#include <string>

#include "stretto/communicator.hpp"

namespace stretto {

// Sends `out` to rank `to` and receives `in` from rank `from` at the same time; the two ranks may be the same. An empty
// tensor is neither sent nor received. The operations keep the tensors alive until they are done.
Work exchange(const Communicator& group, const Tensor& out, int to, const Tensor& in, int from, const Stream& stream,
              const char* tag);

// A view of rows [first, first + count), as a matrix.
Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t count);

// i modulo ranks, in [0, ranks); i may be negative.
inline int around(int i, int ranks) { return (i % ranks + ranks) % ranks; }

}  // namespace stretto
