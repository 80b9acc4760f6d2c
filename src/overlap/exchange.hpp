#pragma once
#include <string>

#include "stretto/communicator.hpp"

namespace stretto {

// Sends one tensor to a rank and receives another from a rank (or the same) at the same time; what is empty travels on
// neither side. The tensors are kept alive until it is done.
Work exchange(const Communicator& group, const Tensor& out, int to, const Tensor& in, int from, const Stream& stream,
              const std::string& tag);

// Rows of a tensor of two dimensions or more.
Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t count);

// Member i of a ring that runs through the ranks; i may be negative.
inline int around(int i, int ranks) { return (i % ranks + ranks) % ranks; }

}  // namespace stretto
