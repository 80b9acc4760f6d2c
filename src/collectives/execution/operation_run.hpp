#pragma once
#include <optional>
#include <vector>

#include "collectives/execution/execution.hpp"
#include "collectives/execution/plan_run.hpp"
#include "collectives/execution/shared_memory_run.hpp"

namespace stretto {

// One operation in flight on the host. If the plan depends on where the buffers are, the ranks tell each other, and wait
// until they know. A rank whose own buffers cannot be mapped knows the plan at once and does not wait, except for a pull;
// over links it ends only when it has heard from all ranks. A plan that goes over mapped memory and needs no buffers of its
// own runs without an allocation, a lock or an atomic read-modify-write.
class OperationRun {
 public:
  // Both must outlive this object; execution.planned must not be null. precedence: null if the operation neither yields to
  // others nor goes before them.
  OperationRun(const Execution& execution, OperationPrecedence* precedence);

  // Never waits; returns true if anything moved.
  bool advance() { return in_memory_ ? in_memory_->advance() : advance_others(); }
  bool finished() const {
    return in_memory_ ? in_memory_->finished() : over_links_ && over_links_->finished() && !exchanging();
  }
  std::vector<int> awaited() const;  // members
  // The chosen variant; null while the ranks tell each other where their buffers are.
  const PlanVariant* variant() const { return variant_; }

 private:
  bool advance_others();
  bool exchanging() const { return exchange_ && !exchange_->finished(); }
  void begin_plan(const PlanVariant& variant, Announcement announcement);

  const Execution& execution_;
  OperationPrecedence* precedence_;
  const PlanVariant* variant_ = nullptr;
  std::optional<BufferExchange> exchange_;
  bool begins_early_ = false;  // begins the plan once it has posted its part of the exchange
  std::optional<SharedMemoryRun> in_memory_;
  std::optional<PlanRun> over_links_;
};

}  // namespace stretto
