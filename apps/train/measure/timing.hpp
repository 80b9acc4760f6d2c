#pragma once
#include <functional>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/planning/layout_cost.hpp"

namespace apps {

// Times pieces of work that all ranks do at the same time. Every function is collective.
class Timing {
 public:
  // The world must outlive this object.
  explicit Timing(const stretto::Communicator& world);

  const stretto::Communicator& world() const { return world_; }
  // The ranks of a machine and its cores, if ranks take turns on cores; else no ranks.
  const stretto::SharedCores& shared_cores() const { return shared_cores_; }
  double turns() const { return turns_; }  // that the ranks of a machine take on its cores; 1 if each has its own

  // Allocates what a piece of work needs, and returns the work.
  using Preparation = std::function<std::function<void()>()>;
  // Seconds of the device's work, of the slowest rank. The pieces of work take turns, round by round, because the machine's
  // speed changes: what is compared has been measured at the same time.
  std::vector<double> slowest_in_turn(const std::vector<Preparation>& works) const;
  double slowest(const std::function<void()>& work) const;
  // The seconds that the same work takes a rank with a core of its own.
  double alone(double seconds) const { return seconds / turns_; }

 private:
  double seconds_of_call(const std::function<void()>& work, int calls) const;

  const stretto::Communicator& world_;
  stretto::Communicator machine_;
  stretto::SharedCores shared_cores_;
  double turns_ = 1;
};

}  // namespace apps
