#pragma once
#include <algorithm>

#include "collectives/proof/verify_layout.hpp"
#include "collectives/proof/verify_order.hpp"
#include "collectives/proof/verify_refused.hpp"

namespace stretto {

// Signals and waits of ranks that share memory, and whether they put in order what the ranks do with it.
class Signals {
 public:
  Signals(const std::vector<Plan>& plans, const Layout& layout) : plans_(plans), layout_(layout) {
    const auto shares = [](const Plan& plan) {
      return std::any_of(plan.lanes.begin(), plan.lanes.end(), [](const Lane& lane) {
        return std::any_of(lane.steps.begin(), lane.steps.end(),
                           [](const Step& step) { return between_memories(step.kind); });
      });
    };
    used_ = std::any_of(plans.begin(), plans.end(), shares);
    if (!used_) return;
    for (int rank = 0; rank < size(); ++rank) check_plan(rank);
    waiting_.resize(plans.size());
    order_ = Order(size(), layout.cells());
    for (int rank = 0; rank < size(); ++rank) {
      for_each_buffer(rank, [&](Buffer, std::int64_t cell) { order_.begin(rank, cell); });
    }
  }

  bool used() const { return used_; }

  // The signal of a round, where it has one; heard(rank) for each rank that was waiting for it. What else is in the round
  // need not be done by then.
  template <class Heard>
  void tell(int rank, std::size_t round, const Step* first, const Step* last, Heard heard) {
    const auto signals = std::count_if(first, last, [](const Step& step) { return step.kind == StepKind::signal; });
    const bool waits = std::any_of(first, last, [](const Step& step) { return step.kind == StepKind::wait; });
    if (signals == 0) return;
    demand(signals == 1 && !waits, "Rank {} signals and waits, or signals twice, in round {}.", rank, round);
    order_.signal(rank);
    std::vector<Waiting>& waiting = waiting_[rank];
    for (std::size_t i = 0; i < waiting.size();) {
      if (waiting[i].signals > order_.signals(rank)) {
        ++i;
        continue;
      }
      order_.hear(waiting[i].rank, rank, waiting[i].signals);
      heard(waiting[i].rank);
      waiting[i] = waiting.back();
      waiting.pop_back();
    }
  }
  // Whether the peer has signalled as often as this rank; else the rank will be among those that hear it.
  bool hear(int rank, int peer) {
    const std::int64_t signals = order_.signals(rank);
    if (order_.signals(peer) < signals) {
      waiting_[peer].push_back({rank, signals});
      return false;
    }
    order_.hear(rank, peer, signals);
    return true;
  }

  void order(int rank, const Access& access) {
    for (std::int64_t cell = access.range.begin; cell < access.range.end; ++cell) {
      const Order::Clash clash = access.writes ? order_.write(rank, cell) : order_.read(rank, cell);
      if (clash) refuse(rank, access, cell, clash);
    }
  }

  // Its owner may do with its memory what it likes when its plan is done. But the slots of packets are kept.
  void check_ending(int rank) {
    const bool keeps_scratch = plans_[rank].request.method.algorithm == Algorithm::packet;
    for_each_buffer(rank, [&](Buffer buffer, std::int64_t cell) {
      if (buffer == Buffer::scratch && keeps_scratch) return;
      const Order::Clash clash = order_.write(rank, cell);
      if (!clash) return;
      throw Refused{fmt::format("Rank {} may be done while rank {} still {} {}.", rank, clash.rank,
                                clash.writes ? "writes" : "reads", layout_.text_of(cell))};
    });
  }

 private:
  struct Waiting {
    int rank;
    std::int64_t signals;  // how many it must hear
  };

  int size() const { return static_cast<int>(plans_.size()); }

  void check_plan(int rank) const {
    const std::vector<Lane>& lanes = plans_[rank].lanes;
    demand(lanes.size() <= 1, "Rank {} has {} lanes; where ranks share memory there is one.", rank, lanes.size());
    for (const Lane& lane : lanes) {
      const bool talks = std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) {
        return step.kind == StepKind::send || step.kind == StepKind::recv || step.kind == StepKind::recv_reduce;
      });
      demand(!talks, "Rank {} exchanges messages, but where ranks share memory signals alone put things in order.", rank);
    }
    const std::int64_t signals = signals_of(rank);
    demand(signals == signals_of(0), "Rank {} signals {} times, and rank 0 {} times; all must do so equally often.", rank,
           signals, signals_of(0));
    demand(signals <= Order::most_signals, "Rank {} signals {} times; the verifier counts to {}.", rank, signals,
           Order::most_signals);
  }
  std::int64_t signals_of(int rank) const {
    std::int64_t signals = 0;
    for (const Lane& lane : plans_[rank].lanes) {
      signals += std::count_if(lane.steps.begin(), lane.steps.end(),
                               [](const Step& step) { return step.kind == StepKind::signal; });
    }
    return signals;
  }

  template <class Visit>
  void for_each_buffer(int rank, Visit visit) const {
    for (const Buffer buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
      const Range range = layout_.range_of(rank, buffer);
      for (std::int64_t cell = range.begin; cell < range.end; ++cell) visit(buffer, cell);
    }
  }

  [[noreturn]] void refuse(int rank, const Access& access, std::int64_t cell, const Order::Clash& clash) const {
    const std::string what = fmt::format("Rank {} {} {}", rank, access.writes ? "writes" : "reads", layout_.text_of(cell));
    if (clash.beginning) throw Refused{what + ", which may not have begun."};
    throw Refused{
        fmt::format("{}, which rank {} may {} at the same time.", what, clash.rank, clash.writes ? "write" : "read")};
  }

  const std::vector<Plan>& plans_;
  const Layout& layout_;
  bool used_ = false;
  Order order_;
  std::vector<std::vector<Waiting>> waiting_;  // by the rank that must signal
};

}  // namespace stretto
