#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/communicator.hpp"

namespace perf {

// Seconds an iteration, on one rank: the mean of a loop without barriers, and the distribution within it. Short iterations
// are timed in batches of a few microseconds, each of which counts as iterations of its mean. On a GPU all times are its
// own, by events, and the distribution is that of single iterations with events around each.
struct Timing {
  double mean = 0;
  double p50 = 0;
  double p99 = 0;
};

// Performs the operations number first, first + 1, ...: as many as iterations says. One call for many of them, so that it
// adds nothing to the shortest.
using Action = std::function<void(int first, int iterations)>;
// Of what performs one operation on one of the copies of the buffers, which take turns.
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
  double seconds = 0;  // above 0: so many iterations as last about as long
};
// All ranks call it with the same loop; they begin together. On a GPU the action puts its operations into computation().
Timing measure(const stretto::Communicator& world, const Loop& loop, const Action& action);

// The median of several measurements, field by field.
Timing typical(const std::vector<Timing>& timings);

// What becomes of the ranks' times: the -a of nccl-tests.
enum class Over { rank0, mean, least, most };
// At rank 0; the others get what is theirs.
Timing over_ranks(const stretto::Communicator& world, const Timing& mine, Over over);

// At rank 0: what every rank gives, in rank order; nothing at the others. By plain messages, which no collective that is
// under test has a part in.
std::vector<double> to_rank0(const stretto::Communicator& world, double mine);
std::vector<std::string> to_rank0(const stretto::Communicator& world, const std::string& mine);
// What rank 0 gives, at every rank; by plain messages, too.
double from_rank0(const stretto::Communicator& world, double value);

}  // namespace perf
