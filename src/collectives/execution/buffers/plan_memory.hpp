#pragma once
#include <array>

#include "collectives/execution/buffers/local_work.hpp"
#include "collectives/execution/execution.hpp"

namespace stretto {

// The memory of one plan in flight, both the caller's and the plan's own. Turns the slices of steps into addresses.
class PlanMemory {
 public:
  // All three must outlive this object.
  PlanMemory(const Execution& execution, const PlanVariant& variant, const ExecutionSpace& space);

  const std::byte* at(const Slice& slice) const;
  std::byte* target(const Slice& slice) const { return const_cast<std::byte*>(at(slice)); }
  std::size_t bytes(const Slice& slice) const;

  ReduceOp op() const { return op_; }  // combines two contributions
  std::int64_t divisor_of(const Step& step) const;
  LocalWork local_work_of(const Step& step) const;
  // Call it when the plan is done: completes the caller's output.
  void finish() const { buffers_.finish(); }

 private:
  const Execution& execution_;
  const Plan& plan_;
  DType wire_;
  ReduceOp op_;
  std::size_t width_;
  WireBuffers buffers_;
  std::shared_ptr<std::byte> scratch_;
  std::array<std::shared_ptr<std::byte>, quantized_formats> packed_;
};

}  // namespace stretto
