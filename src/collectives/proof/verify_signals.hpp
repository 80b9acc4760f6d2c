#pragma once
#include <algorithm>

#include "collectives/proof/verify_clocks.hpp"
#include "collectives/proof/verify_refused.hpp"
#include "stretto/plan.hpp"

namespace stretto {

// Signals and waits of ranks that share memory: the ranks that wait for each rank, and the signals that each rank knows of.
class Signals {
 public:
  explicit Signals(const std::vector<Plan>& plans) : clocks_(static_cast<int>(plans.size())), waiting_(plans.size()) {
    const std::int64_t first = signals_of(plans[0]);
    for (const Plan& plan : plans) check_plan(plan, first);
  }

  const Clocks& clocks() const { return clocks_; }

  // The rank signals that all rounds before the current one are done. Calls resume(rank) for each rank that was waiting for
  // this signal.
  template <class Resume>
  void signal(int rank, Resume resume) {
    clocks_.signal(rank);
    std::vector<Waiting>& waiting = waiting_[rank];
    for (std::size_t i = 0; i < waiting.size();) {
      if (waiting[i].number > clocks_.signals(rank)) {
        ++i;
        continue;
      }
      clocks_.wait(waiting[i].rank, rank, waiting[i].number);
      resume(waiting[i].rank);
      waiting[i] = waiting.back();
      waiting.pop_back();
    }
  }
  // A rank waits until the peer has given as many signals as the rank itself. Returns whether it already has; if not,
  // signal() will resume the rank.
  bool wait(int rank, int peer) {
    const std::int64_t number = clocks_.signals(rank);
    if (clocks_.signals(peer) < number) {
      waiting_[peer].push_back({rank, number});
      return false;
    }
    clocks_.wait(rank, peer, number);
    return true;
  }

 private:
  struct Waiting {
    int rank;
    std::int64_t number;  // of the signal that it waits for
  };

  static void check_plan(const Plan& plan, std::int64_t signals_of_first) {
    const int rank = plan.request.rank;
    demand(plan.lanes.size() <= 1, "Rank {} has {} lanes; where ranks share memory there is one.", rank, plan.lanes.size());
    for (const Lane& lane : plan.lanes) {
      const bool talks = std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) {
        return step.kind == StepKind::send || step.kind == StepKind::recv || step.kind == StepKind::recv_reduce;
      });
      demand(!talks, "Rank {} exchanges messages, but where ranks share memory signals alone put things in order.", rank);
    }
    const std::int64_t signals = signals_of(plan);
    demand(signals == signals_of_first, "Rank {} signals {} times, and rank 0 {} times; all must do so equally often.", rank,
           signals, signals_of_first);
    demand(signals <= Clocks::most_signals, "Rank {} signals {} times; the verifier counts to {}.", rank, signals,
           Clocks::most_signals);
  }
  static std::int64_t signals_of(const Plan& plan) {
    std::int64_t signals = 0;
    for (const Lane& lane : plan.lanes) {
      signals += std::count_if(lane.steps.begin(), lane.steps.end(),
                               [](const Step& step) { return step.kind == StepKind::signal; });
    }
    return signals;
  }

  Clocks clocks_;
  std::vector<std::vector<Waiting>> waiting_;  // by the rank that must signal
};

}  // namespace stretto
