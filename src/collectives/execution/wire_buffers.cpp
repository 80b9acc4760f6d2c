#include "collectives/execution/wire_buffers.hpp"

namespace stretto {

void WireBuffers::set_up(const Caller& caller, const PlanRequest& request, const PlanPlace& place) {
  const std::size_t width = size_of(caller.wire);
  const std::int64_t count = input_count(request);
  own_input_ = place.allocate(static_cast<std::size_t>(count) * width);
  const std::byte* from = caller.input;
  if (caller.wire != caller.dtype) {
    place.convert(caller.dtype, from, caller.wire, own_input_.get(), count);
    from = own_input_.get();
    own_output_ = place.allocate(static_cast<std::size_t>(output_count(request)) * width);
    output_ = own_output_.get();
  }
  if (caller.op == ReduceOp::premul_sum) place.multiply(caller.wire, from, own_input_.get(), count, caller.factor);
  input_ = own_input_.get();
}

void WireBuffers::narrow(const Caller& caller, const PlanRequest& request, const PlanPlace& place) const {
  place.convert(caller.wire, output_, caller.dtype, caller.output, output_count(request));
}

}  // namespace stretto
