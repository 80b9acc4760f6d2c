#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/communicator.hpp"

namespace perf {

// Seconds an iteration on one rank: the mean of a loop without barriers, and percentiles within the loop. Short iterations
// are timed in batches of a few microseconds; all iterations of a batch count with its mean. On a GPU, times come from
// events, and the percentiles are those of single iterations with events around each.
struct Timing {
  double mean = 0;
  double p50 = 0;
  double p99 = 0;
};

// Performs operations number first to first + iterations - 1. One call performs many, so that the call itself adds nothing
// to the shortest of them.
using Action = std::function<void(int first, int iterations)>;
// An action from a function that performs one operation on a given copy of the buffers; the copies take turns.
template <class Once>
Action repeated(int copies, Once once) {
  return [copies, once = std::move(once)](int first, int iterations) {
    int copy = first % copies;
    for (int i = 0; i < iterations; ++i) {
      once(copy);
      if (++copy == copies) copy = 0;
    }
  };
}

struct Loop {
  int warmup = 5;
  int iterations = 20;
  double seconds = 0;        // above 0: the number of iterations that last about that long
  double least_seconds = 0;  // above 0: at least `iterations`, and as many as last about that long
};
// Collective, with the same loop on all ranks, which begin together. On a GPU, the action enqueues its operations in
// computation().
Timing measure(const stretto::Communicator& world, const Loop& loop, const Action& action);

// The median of several measurements, field by field.
Timing typical(const std::vector<Timing>& timings);

// The way in which the ranks' times are combined: the -a of nccl-tests.
enum class Over { rank0, mean, least, most };
// The combined timing at rank 0; the other ranks get their own.
Timing over_ranks(const stretto::Communicator& world, const Timing& mine, Over over);

// At rank 0: the values of all ranks, in rank order; empty at the others. Uses plain messages, so that no collective under
// test takes part.
std::vector<double> to_rank0(const stretto::Communicator& world, double mine);
std::vector<std::string> to_rank0(const stretto::Communicator& world, const std::string& mine);
// Rank 0's value at every rank, by plain messages as well.
double from_rank0(const stretto::Communicator& world, double value);

}  // namespace perf
