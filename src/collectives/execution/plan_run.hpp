#pragma once
#include <atomic>

#include "collectives/execution/host_executor.hpp"
#include "collectives/execution/plan_memory.hpp"

namespace stretto {

// For tests: called before each round of each lane, to hold it up.
inline std::atomic<void (*)()> before_each_round = nullptr;

// One plan on its way: which round each lane is in, and the transfers and the local work of that round.
class PlanRun {
 public:
  // The execution must outlive it.
  explicit PlanRun(const Execution& execution);
  ~PlanRun();
  PlanRun(const PlanRun&) = delete;
  PlanRun& operator=(const PlanRun&) = delete;

  // Moves what can be moved without waiting; true if that was anything. Once finished, the output is complete.
  bool advance();
  bool finished() const { return finished_; }
  // Members of the group for whom it waits.
  std::vector<int> awaited() const;

 private:
  struct Active {
    Link* link;
    Transfer transfer;
    int peer;
  };
  struct LaneState {
    std::size_t round = 0;  // the next to begin
    std::vector<Active> active;
    std::vector<LocalWork> local;
  };
  static bool round_finished(const LaneState& lane) { return lane.active.empty() && lane.local.empty(); }

  bool lane_finished(std::size_t lane) const;
  bool advance_lane(std::size_t lane, std::size_t& local_bytes);
  bool progress(Active& active);
  void begin_round(std::size_t lane);
  Transfer transfer_of(const Step& step) const;

  const Execution& run_;
  PlanMemory memory_;
  std::vector<LaneState> lanes_;
  bool moved_bytes_ = false;  // in this advance(), to or from a peer, where there is a precedence
  bool finished_ = false;
};

}  // namespace stretto
