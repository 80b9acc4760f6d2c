#pragma once
#include <vector>

#include "collectives/execution/execution.hpp"
#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Puts the sequences into a GPU's stream and returns: each round of a plan becomes one exchange of messages and the kernels
// behind it; the host does not look at it any more, so that a CUDA graph can hold it. Calls without steps (has_steps()) are
// given to the links whole.
//
// Messages of a communicator go together in one exchange; collectives follow, communicator by communicator in the order of
// their ids, which all ranks know. Lanes go side by side if every message has the same round at its sender and its receiver,
// and else one after the other: a stream has a single order, and rounds that are out of step between lanes would wait for
// each other forever.
//
// stream must be the thread's computation().
void put_into_stream(const std::vector<Sequence>& sequences, Gpu& gpu, GpuStream stream);

// The rounds of a plan as one stream does them. The steps are the plan's.
std::vector<std::vector<const Step*>> rounds_in_one_stream(const Plan& plan);

}  // namespace stretto
