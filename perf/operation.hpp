#pragma once
#include <string>

#include "buffers.hpp"
#include "cases.hpp"
#include "measure.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Performs a case on those buffers, in the calling thread. All ranks perform it as often. What a call takes is laid out
// here, once; prepared: the library plans it here, too (Communicator::prepare).
Action action_of(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const Buffers& buffers,
                 bool prepared);
// A ring exchange is two operations, which cannot be prepared together.
constexpr bool can_be_prepared(const Test& test) { return !is_ring_exchange(test); }
// The method by which that is done: the one that is given, or the library's choice. Throws where it cannot be done.
std::string method_of(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
                      void* output);

}  // namespace perf
