#pragma once
#include <vector>

#include "collectives/execution/host_executor.hpp"
#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Puts the sequences into a GPU's stream and returns: each round of a plan becomes one exchange of messages and the kernels
// behind it, without a look from the host, so that a CUDA graph can hold it. A call that the links do by themselves
// (Algorithm::nccl) is theirs.
//
// Messages of a communicator go together in one exchange; collectives follow, communicator by communicator in the order of
// their ids, which all ranks know. Lanes go side by side where every message has the same round at its sender and its
// receiver, and one after the other where that is not so: a stream has but one order, and rounds that are out of step
// between lanes would wait for each other for ever.
// The stream is the thread's computation().
void put_into_stream(const std::vector<Sequence>& sequences, Gpu& gpu, GpuStream stream);

// The rounds of a plan as one stream does them; a step is named by its place in its lane.
std::vector<std::vector<const Step*>> rounds_in_one_stream(const Plan& plan);

}  // namespace stretto
