#pragma once
#include <vector>

#include "collectives/execution/execution.hpp"
#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Enqueues the sequences on a GPU's stream and returns. Each round of a plan becomes one exchange of messages, followed by
// the kernels. The host does not take part after that, so a CUDA graph can capture it. Calls without steps (has_steps()) are
// given to the links as one operation.
//
// The messages of a communicator go together in one exchange. Collectives follow, communicator by communicator in the order
// of their ids, which all ranks know. Lanes run in parallel if every message has the same round at its sender and its
// receiver, and otherwise one after the other: a stream has a single order, and rounds that are out of step between lanes
// would wait for each other forever.
//
// stream must be the thread's computation().
void put_into_stream(const std::vector<Sequence>& sequences, Gpu& gpu, GpuStream stream);

// The rounds of a plan, as one stream runs them. The steps are the plan's.
std::vector<std::vector<const Step*>> rounds_in_one_stream(const Plan& plan);

}  // namespace stretto
