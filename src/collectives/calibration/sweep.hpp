#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "stretto/calibration.hpp"

namespace stretto {

// Collective: rank 0's value.
double on_rank_zero(const Communicator& ranks, double value);

struct Efforts {
  Effort small, large;  // below 1 MiB, and from there on
  Effort large_again;   // for large calls that were timed earlier, of which fewer methods are left
};

// The times of all collectives at growing sizes, until the budget is used up.
class Sweep {
 public:
  struct Size {
    std::int64_t bytes;
    double times_slower;  // than the fastest at the last size: what is left out
    // How many of those that are left are timed; within a node, how many algorithms, each in up to two methods. 0: all are
    // timed, whatever they took at the last size.
    std::size_t most;
  };
  // budget: seconds. Sizes below 1 MiB, without which a measurement is worth nothing, may take three times as long. earlier:
  // what is known, on all ranks, of this machine: methods that were far behind are not timed again.
  Sweep(const Communicator& ranks, const Efforts& efforts, double budget, std::vector<CallTimes> earlier = {});

  // methods(call): those to time, unless the last size decides (Size::most). least_seconds(call): what no method can
  // be faster than; where the library's choice nearly takes that for large vectors, no other one is timed, nor any at larger
  // sizes. Returns false once the budget is used up.
  bool add(const Size& size, bool symmetric, const std::function<std::vector<Method>(const TimedCall&)>& methods,
           const std::function<double(const TimedCall&)>& least_seconds = {});
  // Looks once more at each call's best methods, as far as the budget reaches: a machine that other work has slowed down for
  // a moment may be itself again. Small calls with a root on one node have had their three looks.
  void look_again();
  double seconds_left() const;  // of the budget; collective
  const std::vector<CallTimes>& times() const { return times_; }

 private:
  const CallTimes* earlier_times(const TimedCall& call) const;  // null: there are none
  std::vector<Method> hopeful(std::vector<Method> methods, const TimedCall& call) const;
  std::vector<Method> methods_after(const CallTimes& last, const Size& size) const;
  CallTimes time(const TimedCall& call, const std::vector<Method>& methods, double least_seconds);
  const TimedBuffers& buffers(std::int64_t bytes, bool symmetric);
  bool looks_long(Collective collective, std::int64_t bytes) const;
  Effort effort_for(const TimedCall& call) const;

  const Communicator& ranks_;
  bool is_of_one_node_;
  Efforts efforts_;
  TimedBuffers ordinary_, symmetric_;
  double begin_, budget_;
  std::vector<CallTimes> earlier_;
  std::map<std::pair<Collective, bool>, std::size_t> last_;  // the place in times_ of the last size
  std::set<Collective> settled_;
  std::vector<CallTimes> times_;
};

}  // namespace stretto
