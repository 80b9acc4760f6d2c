#include "overlap/exchange.hpp"

#include <tuple>

namespace stretto {

Work exchange(const Communicator& group, const Tensor& out, int to, const Tensor& in, int from, const Stream& stream,
              const char* tag) {
  if (out.size() == 0 && in.size() == 0) return {};
  OperationGroup both;
  if (out.size() > 0) std::ignore = group.send(out, to, stream, {.tag = tag});
  if (in.size() > 0) std::ignore = group.recv(in, from, stream, {.tag = tag});
  return both.end();
}

Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.view(first * tensor.columns(), {count, tensor.columns()});
}

}  // namespace stretto
