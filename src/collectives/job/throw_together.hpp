#pragma once
#include <exception>
#include <string>

#include "core/fail.hpp"
#include "stretto/communicator.hpp"

namespace stretto {

// Calls f on all ranks. Where it throws on some, all throw: the first of them what it caught, and the others that it could
// not do `what`. Collective; costs an all-reduce of one number.
template <class F>
void throw_together(const Communicator& ranks, const std::string& what, F f) {
  std::exception_ptr error;
  try {
    f();
  } catch (...) {
    error = std::current_exception();
  }
  std::int64_t failed = error ? ranks.size() - ranks.rank() : 0;  // the first rank has the largest number
  ranks.all_reduce(&failed, &failed, 1, DType::i64, ReduceOp::max, Stream::inline_(), {.tag = "outcome"}).wait();
  if (failed == 0) return;
  const std::int64_t first = ranks.size() - failed;
  if (first == ranks.rank()) std::rethrow_exception(error);
  fail(ErrorCode::peer_gave_up, "Rank {} could not {}.", first, what);
}

}  // namespace stretto
