#include "overlap/exchange.hpp"

#include <tuple>

namespace stretto {

Work exchange(const Communicator& group, const Tensor& out, int to, const Tensor& in, int from, const Stream& stream,
              const std::string& tag) {
  if (out.size() == 0 && in.size() == 0) return {};
  OperationGroup both;
  const auto put = [&](Collective collective, const Tensor& tensor, int peer) {
    if (tensor.size() == 0) return;
    Call call{collective, nullptr, nullptr, tensor.size(), tensor.dtype(), ReduceOp::sum, peer};
    if (collective == Collective::send) call.input = tensor.raw();
    if (collective == Collective::recv) call.output = tensor.raw();
    call.keep_alive = tensor;
    std::ignore = group.start(call, stream, {.tag = tag});
  };
  put(Collective::send, out, to);
  put(Collective::recv, in, from);
  return both.end();
}

Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.view(first * tensor.columns(), {count, tensor.columns()});
}

}  // namespace stretto
