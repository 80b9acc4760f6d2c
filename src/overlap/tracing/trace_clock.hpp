#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"

// All ranks' times on rank 0's clock.
namespace stretto {

// A question to another clock: what this one said before and after, and what the other one said between.
struct ClockExchange {
  double sent, there, received;
};
// At a time of this clock, what has to be added to get the other one's: no further from the truth than the error.
struct ClockReading {
  double at = 0, offset = 0, error = 0;
};
// The shortest exchange says most: the answer was given in the middle of it, or half of it earlier or later.
ClockReading read_clock(const std::vector<ClockExchange>& exchanges);

// Between two readings the clocks drift apart evenly; before and after them nothing is known of that.
class ClockLine {
 public:
  ClockLine(const ClockReading& first, const ClockReading& last) : first_(first), last_(last) {}
  double there(double here) const;
  double error() const { return std::max(first_.error, last_.error); }

 private:
  ClockReading first_, last_;
};

// Ranks that give the same name read the same monotonic clock.
std::string clock_name();
// Collective: this rank's reading of rank 0's clock, all zero where it is its own. now: of now_seconds().
ClockReading compare_with_rank_0(const Communicator& world, const std::string& name, const std::function<double()>& now);

}  // namespace stretto
