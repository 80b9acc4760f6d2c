#pragma once
#include <string>

#include "perf/buffers.hpp"
#include "perf/cases.hpp"
#include "perf/measure.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Performs a case on those buffers, in the calling thread or in this thread's stream on a GPU. All ranks perform it as
// often. What a call takes is laid out here, once; prepared: the library plans it here, too (Communicator::prepare).
Action action_of(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const Buffers& buffers,
                 bool prepared, const stretto::Quantization& quantization = {});
// A ring exchange is two operations, which cannot be prepared together.
constexpr bool can_be_prepared(const Test& test) { return !is_ring_exchange(test); }
// The method by which that is done: the one that is given, or the library's choice. Throws where it cannot be done.
std::string method_of(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
                      void* output, const stretto::Quantization& quantization = {});

// What the ranks of a host can do with each other's buffers.
struct Reach {
  bool maps = false;   // all are in symmetric memory, or the ranks are threads of one process
  bool reads = false;  // the kernel reads in them, see ranks_read_each_other()
};
// Why that cannot be done by that method with such buffers: memory is out of reach, a packet too small. Empty where it can.
std::string obstacle_to(const stretto::Communicator& world, const Case& what, const stretto::Method& method,
                        const Buffers& buffers, const Reach& reach, const stretto::Quantization& quantization = {});

}  // namespace perf
