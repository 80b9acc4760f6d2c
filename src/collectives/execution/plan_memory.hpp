#pragma once
#include <array>

#include "collectives/execution/host_executor.hpp"
#include "collectives/plan/plan_place.hpp"

namespace stretto {

// The memory that one execution of a plan is about, the caller's and the plan's own, and what its steps mean there.
class PlanMemory {
 public:
  // The execution and the place must outlive it.
  PlanMemory(const Execution& execution, const PlanPlace& place);

  const std::byte* at(const Slice& slice) const;
  std::byte* target(const Slice& slice) const { return const_cast<std::byte*>(at(slice)); }
  std::size_t bytes(const Slice& slice) const;

  ReduceOp op() const { return op_; }  // in which two contributions combine
  std::int64_t divisor_of(const Step& step) const;
  LocalWork local_work_of(const Step& step) const;
  // The plan is done: the caller's output gets what the plan's output holds.
  void finish() const { buffers_.finish(run_.caller, run_.plan->request, place_); }

 private:
  const Execution& run_;
  const PlanPlace& place_;
  ReduceOp op_;
  std::size_t width_;
  WireBuffers buffers_;
  std::shared_ptr<std::byte> scratch_;
  std::array<std::shared_ptr<std::byte>, quantized_formats> packed_;
};

}  // namespace stretto
