#pragma once
#include <cstddef>
#include <memory>

#include "collectives/execution/buffers/execution_space.hpp"
#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

namespace stretto {

// The buffers of a call as the caller gave them, and how contributions are reduced.
struct CallBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;  // sum where the collective does not reduce
  double factor = 1;            // of premul_sum

  // Whether contributions change before they travel as elements of type `wire`.
  bool need_copies(DType wire) const { return wire != dtype || op == ReduceOp::premul_sum; }
};

// The buffers that a plan reads and writes: the caller's or, if contributions change before they travel, copies of them,
// since the caller's input must stay as it is.
class WireBuffers {
 public:
  // buffers, request and space must outlive this object.
  WireBuffers(const CallBuffers& buffers, DType wire, const PlanRequest& request, const ExecutionSpace& space)
      : buffers_(buffers), wire_(wire), request_(request), space_(space), input_(buffers.input), output_(buffers.output) {
    if (buffers.need_copies(wire)) set_up();
  }
  const std::byte* input() const { return input_; }
  std::byte* output() const { return output_; }
  // Call it when the plan is done: copies the plan's output into the caller's, if they differ.
  void finish() const {
    if (own_output_) narrow();
  }

 private:
  void set_up();
  void narrow() const;

  const CallBuffers& buffers_;
  DType wire_;
  const PlanRequest& request_;
  const ExecutionSpace& space_;
  const std::byte* input_;
  std::byte* output_;
  std::shared_ptr<std::byte> own_input_, own_output_;
};

}  // namespace stretto
