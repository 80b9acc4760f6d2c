#pragma once
#include <string>

#include "perf/buffers.hpp"
#include "perf/cases.hpp"
#include "perf/measure.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// An action that performs the case on those buffers, in the calling thread or in this thread's stream on a GPU. All ranks
// must perform it equally often. The arguments of a call are laid out here, once; prepared: the library plans the call here
// as well (Communicator::prepare).
Action action_of(const stretto::Communicator& world, const Case& test_case, const stretto::Method& method,
                 const Buffers& buffers, bool prepared, const stretto::Quantization& quantization = {});
// A ring exchange consists of two operations, which cannot be prepared together.
constexpr bool can_be_prepared(const Test& test) { return !is_ring_exchange(test); }
// The method of a call: the given one, or the library's choice. Throws if the method cannot do the case.
std::string method_of(const stretto::Communicator& world, const Case& test_case, const stretto::Method& method,
                      const void* input, void* output, const stretto::Quantization& quantization = {});

// The ways in which the ranks of a host can reach each other's buffers.
struct Reach {
  bool maps = false;   // all buffers are in symmetric memory, or the ranks are threads of one process
  bool reads = false;  // the kernel lets ranks read them; see ranks_read_each_other()
};
// The reason why the method cannot do the case with such buffers: memory out of reach, or a packet that is too small. Empty
// if it can.
std::string obstacle_to(const stretto::Communicator& world, const Case& test_case, const stretto::Method& method,
                        const Buffers& buffers, const Reach& reach, const stretto::Quantization& quantization = {});

}  // namespace perf
