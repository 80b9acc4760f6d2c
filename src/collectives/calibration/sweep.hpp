#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/planning/calibration.hpp"

namespace stretto {

// Collective. Returns rank 0's value.
double on_rank_zero(const Communicator& ranks, double value);

struct Efforts {
  Effort small, large;  // for calls below 1 MiB, and for the others
};

// The seconds after which a measurement begins no further call of 1 MiB or more, and no smaller one. Small calls get more
// time, because most calls of programs are small.
struct Budget {
  double seconds;
  double of_small = 3 * seconds;
};

// Times all collectives at some sizes, as far as the budget reaches.
class Sweep {
 public:
  struct Size {
    std::int64_t bytes;
    bool also_symmetric;  // times calls in both kinds of memory
    // Leaves out methods that took more than this many times as long as the fastest one at the next smaller size.
    double times_slower = 0;
    // The number of methods to time of those that remain; within a node the number of algorithms, each in up to two methods.
    // 0: all methods are timed, whatever they took for fewer bytes.
    std::size_t most = 0;
  };
  // Collective. Rank 0's budget counts.
  Sweep(const Communicator& ranks, const Efforts& efforts, const Budget& budget);

  // sizes: ascending. Calls in symmetric memory take less time, so of each size they are timed first: more calls are then
  // reached.
  // methods(call) names the methods to time, unless a smaller size decides (Size::most). least_seconds(call) is a bound that
  // no method can beat. If the library's choice nearly reaches it for a large vector, the sweep times no other method of
  // that collective, and no larger vector.
  // Returns the bytes of the smallest call for which no time was left; none if there was time for all.
  std::optional<std::int64_t> run(const std::vector<Size>& sizes,
                                  const std::function<std::vector<Method>(const TimedCall&)>& methods,
                                  const std::function<double(const TimedCall&)>& least_seconds = {});
  // Times each call's best methods once more, as far as the budget reaches, in case other work disturbed the first look.
  // Small calls with a root on one node are left out: run() has looked at them three times.
  void look_again();
  const std::vector<CallTimes>& times() const { return times_; }

 private:
  struct SizedCall {
    Size size;
    bool symmetric;
    Collective collective;
    std::int64_t count;
  };
  std::vector<SizedCall> calls_of(const std::vector<Size>& sizes) const;  // in the order in which run() times them
  const CallTimes* times_of_smaller(const TimedCall& call) const;         // at the next smaller size; null if there are none
  std::vector<Method> methods_after(const CallTimes& smaller, const Size& size) const;
  CallTimes time(const TimedCall& call, const std::vector<Method>& methods, double least_seconds);
  const TimedBuffers& buffers(std::int64_t bytes, bool symmetric);
  bool looks_long(Collective collective, std::int64_t bytes) const;
  Effort effort_for(const TimedCall& call) const;
  double seconds_passed() const;  // collective

  const Communicator& ranks_;
  bool is_of_one_node_;
  Efforts efforts_;
  TimedBuffers ordinary_, symmetric_;
  double begin_;
  Budget budget_;
  std::map<Collective, std::int64_t> settled_;  // the bytes from which on no call is timed; see least_seconds
  std::vector<CallTimes> times_;
};

}  // namespace stretto
