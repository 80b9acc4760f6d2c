#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/calibration.hpp"

namespace stretto {

// Collective: rank 0's value.
double on_rank_zero(const Communicator& ranks, double value);

struct Efforts {
  Effort small, large;  // below 1 MiB, and from there on
};

// Seconds for a measurement. Calls of less than 1 MiB, without which it is worth little, may take until `of_small`.
struct Budget {
  double seconds;
  double of_small = 3 * seconds;
};

// The times of all collectives at some sizes, as far as the budget reaches.
class Sweep {
 public:
  struct Size {
    std::int64_t bytes;
    bool also_symmetric;  // times calls in both kinds of memory
    // Methods that took more than so many times as long as the fastest one at the next smaller size are left out.
    double times_slower = 0;
    // How many of the others are timed; within a node, how many algorithms, each in up to two methods. 0: all are timed,
    // whatever they took for fewer bytes.
    std::size_t most = 0;
  };
  // Collective. budget: rank 0's counts. earlier: what is known, the same on all ranks; methods that were far behind are
  // timed again only if a brief look shows that they are not.
  Sweep(const Communicator& ranks, const Efforts& efforts, const Budget& budget, std::vector<CallTimes> earlier = {});

  // sizes: ascending. On one node calls below 1 MiB come first, and of them, as of the others, those that no earlier
  // measurement has reached. Between nodes all that is unknown comes before all that is known. Of each size, the calls in
  // symmetric memory come first, of which the time that is left allows more.
  // methods(call): those to time, unless a smaller size decides (Size::most). least_seconds(call): what no method can be
  // faster than; where the library's choice nearly takes that for large vectors, no other one is timed, nor larger vectors.
  // Returns the bytes of the smallest call for which no time was left; none if there was time for all.
  std::optional<std::int64_t> run(const std::vector<Size>& sizes,
                                  const std::function<std::vector<Method>(const TimedCall&)>& methods,
                                  const std::function<double(const TimedCall&)>& least_seconds = {});
  // Looks once more at each call's best methods, as far as the budget reaches: a machine that other work has slowed down for
  // a moment may be itself again. Small calls with a root on one node have had their three looks.
  void look_again();
  const std::vector<CallTimes>& times() const { return times_; }
  bool has_new_calls() const;  // times of calls that no earlier measurement has reached

 private:
  struct SizedCall {
    Size size;
    bool symmetric;
    Collective collective;
    std::int64_t count;
  };
  std::vector<SizedCall> calls_of(const std::vector<Size>& sizes) const;  // in the order in which run() times them
  bool is_unknown(const SizedCall& call) const;
  const CallTimes* earlier_times(Collective collective, std::int64_t count, bool symmetric) const;  // null: there are none
  const CallTimes* earlier_times(const TimedCall& call) const;
  const CallTimes* times_of_smaller(const TimedCall& call) const;  // at the next smaller size, now or earlier; null: none
  // Doubtful: those that earlier measurements found far behind.
  std::pair<std::vector<Method>, std::vector<Method>> hopeful_and_doubtful(const std::vector<Method>& methods,
                                                                           const TimedCall& call) const;
  // Those that a brief look does not show to be far behind: something disturbed the earlier measurement.
  std::vector<Method> no_longer_behind(const TimedCall& call, const std::vector<Method>& doubtful,
                                       const Method& fastest) const;
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
  std::vector<CallTimes> earlier_;
  std::map<Collective, std::int64_t> settled_;  // from so many bytes on
  std::vector<CallTimes> times_;
};

}  // namespace stretto
