#include "collectives/execution/buffers/wire_buffers.hpp"

namespace stretto {

void WireBuffers::set_up() {
  const std::size_t width = size_of(wire_);
  const std::int64_t count = input_count(request_);
  own_input_ = space_.allocate(static_cast<std::size_t>(count) * width);
  const std::byte* from = buffers_.input;
  if (wire_ != buffers_.dtype) {
    space_.convert(buffers_.dtype, from, wire_, own_input_.get(), count);
    from = own_input_.get();
    own_output_ = space_.allocate(static_cast<std::size_t>(output_count(request_)) * width);
    output_ = own_output_.get();
  }
  if (buffers_.op == ReduceOp::premul_sum) space_.multiply(wire_, from, own_input_.get(), count, buffers_.factor);
  input_ = own_input_.get();
}

void WireBuffers::narrow() const { space_.convert(wire_, output_, buffers_.dtype, buffers_.output, output_count(request_)); }

}  // namespace stretto
