#pragma once
#include <vector>

#include "collectives/execution/buffers/plan_memory.hpp"
#include "collectives/execution/execution.hpp"
#include "transport/link.hpp"
#include "transport/precedence.hpp"

namespace stretto {

// One plan in flight over links: the current round of each lane, with its transfers and its local work.
class PlanRun {
 public:
  // All three must outlive this object. precedence: null if the operation neither yields to others nor goes before them.
  PlanRun(const Execution& execution, const PlanVariant& variant, OperationPrecedence* precedence);
  ~PlanRun();
  PlanRun(const PlanRun&) = delete;
  PlanRun& operator=(const PlanRun&) = delete;

  // Moves the bytes that can be moved without waiting; returns true if anything moved. Once finished, the output is
  // complete.
  bool advance();
  bool finished() const { return finished_; }
  // The members that it waits for.
  std::vector<int> awaited() const;

 private:
  struct Active {
    Link* link;
    Transfer transfer;
    int peer;
  };
  struct LaneProgress {
    std::size_t round = 0;  // the next to begin
    std::vector<Active> active;
    std::vector<LocalWork> local;
  };
  static bool round_finished(const LaneProgress& lane) { return lane.active.empty() && lane.local.empty(); }

  bool lane_finished(std::size_t lane) const;
  bool advance_lane(std::size_t lane, std::size_t& local_bytes);
  bool progress(Active& active);
  void begin_round(std::size_t lane);
  Transfer transfer_of(const Step& step) const;

  Links& links_;
  int first_lane_;
  const PlanVariant& variant_;
  OperationPrecedence* precedence_;
  PlanMemory memory_;
  std::vector<LaneProgress> lanes_;
  bool moved_bytes_ = false;  // in this advance(), to or from a peer; recorded only with a precedence
  bool finished_ = false;
};

}  // namespace stretto
