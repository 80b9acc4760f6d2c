#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"

// Converts the times of all ranks to rank 0's clock.
namespace stretto {

// A question to another rank's clock: this clock's time before and after, and the other clock's time in between.
struct ClockExchange {
  double sent, there, received;
};
// At time `at` of this clock, the other clock shows at + offset, within +- error.
struct ClockReading {
  double at = 0, offset = 0, error = 0;
};
// Uses the shortest exchange: the answer was given in the middle of it, or at most half its duration earlier or later.
ClockReading read_clock(const std::vector<ClockExchange>& exchanges);

// Assumes that the clocks drift apart linearly between two readings; before the first and after the last the offset is
// constant.
class ClockLine {
 public:
  ClockLine(const ClockReading& first, const ClockReading& last) : first_(first), last_(last) {}
  double there(double here) const;
  double error() const { return std::max(first_.error, last_.error); }

 private:
  ClockReading first_, last_;
};

// Ranks with the same clock name read the same monotonic clock.
std::string clock_name();
// Collective: returns this rank's reading of rank 0's clock, all zero if both share one clock. `now` is now_seconds()
// outside of tests.
ClockReading compare_with_rank_0(const Communicator& world, const std::string& name, const std::function<double()>& now);

}  // namespace stretto
