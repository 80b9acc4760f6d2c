#pragma once
#include <cstddef>
#include <memory>

#include "collectives/plan/plan_place.hpp"
#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

namespace stretto {

// Where a plan finds its input and leaves its output: the caller's buffers, unless contributions change before they travel
// (premul_sum) or travel as wider elements. Then they have memory of their own, since the caller's input stays as it is.
class WireBuffers {
 public:
  struct Caller {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    DType dtype = DType::f32;
    DType wire = DType::f32;
    ReduceOp op = ReduceOp::sum;
    double factor = 1;  // of premul_sum
    bool needs_own_buffers() const { return wire != dtype || op == ReduceOp::premul_sum; }
  };

  WireBuffers(const Caller& caller, const PlanRequest& request, const PlanPlace& place)
      : input_(caller.input), output_(caller.output) {
    if (caller.needs_own_buffers()) set_up(caller, request, place);
  }
  const std::byte* input() const { return input_; }
  std::byte* output() const { return output_; }
  // The plan is done: the caller's output gets what the plan's output holds.
  void finish(const Caller& caller, const PlanRequest& request, const PlanPlace& place) const {
    if (own_output_) narrow(caller, request, place);
  }

 private:
  void set_up(const Caller& caller, const PlanRequest& request, const PlanPlace& place);
  void narrow(const Caller& caller, const PlanRequest& request, const PlanPlace& place) const;

  const std::byte* input_;
  std::byte* output_;
  std::shared_ptr<std::byte> own_input_, own_output_;
};

}  // namespace stretto
