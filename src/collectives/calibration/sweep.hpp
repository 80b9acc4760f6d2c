#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "stretto/calibration.hpp"

namespace stretto {

// Collective: rank 0's value.
double on_rank_zero(const Communicator& ranks, double value);

// The times of all collectives at growing sizes, until the budget is used up.
class Sweep {
 public:
  struct Size {
    std::int64_t bytes;
    double times_slower;       // than the fastest at the last size: what is left out
    std::size_t most_methods;  // of those that are left; 0: all methods are timed, whatever they took at the last size
  };
  // budget: seconds.
  Sweep(const Communicator& ranks, const Effort& at_small_sizes, const Effort& at_large_sizes, double budget);

  // methods(call): those to time as long as nothing is known. Returns false once the budget is used up.
  bool add(const Size& size, bool symmetric, const std::function<std::vector<Method>(const TimedCall&)>& methods);
  // Looks once more at each call's best methods, as far as the budget reaches: a machine that other work has slowed down for
  // a moment may be itself again.
  void look_again();
  const std::vector<CallTimes>& times() const { return times_; }

 private:
  const Effort& effort_for(std::int64_t bytes) const;
  bool is_over() const;

  const Communicator& ranks_;
  Effort small_, large_;
  double end_;
  std::map<std::pair<Collective, bool>, std::size_t> last_;  // the place in times_ of the last size
  std::vector<CallTimes> times_;
};

}  // namespace stretto
