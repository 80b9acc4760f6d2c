#include "core/fail.hpp"
#include "stretto/server.hpp"

namespace stretto::server_functions {
namespace {

double scale_of(double scale, bool mean, int pushes) { return mean ? scale / pushes : scale; }

}  // namespace

ServerFunction sum() {
  return {[](const ServerUpdate& update) {
    const Tensor& values = update.values;
    kernels::reduce(ReduceOp::sum, values.dtype(), values.raw(), update.pushed.raw(), values.raw(), values.size());
  }};
}

ServerFunction assign() {
  return {[](const ServerUpdate& update) { update.values.copy_from(update.pushed); }};
}

ServerFunction sgd(const kernels::SGDStep& step, bool mean) {
  return {[step, mean](const ServerUpdate& update) {
            kernels::SGDStep scaled = step;
            scaled.gradient_scale = scale_of(step.gradient_scale, mean, update.pushes);
            const Tensor momentum = update.state.empty() ? Tensor() : update.state[0];
            kernels::sgd(scaled, update.pushed, update.values, momentum, update.values);
          },
          step.momentum != 0 ? 1 : 0};
}

ServerFunction adamw(const kernels::AdamWStep& step, bool mean) {
  return {[step, mean](const ServerUpdate& update) {
            kernels::AdamWStep next = step;
            next.step = update.updates + 1;
            next.gradient_scale = scale_of(step.gradient_scale, mean, update.pushes);
            kernels::adamw(next, update.pushed, update.values, update.state[0], update.state[1], update.values);
          },
          2};
}

}  // namespace stretto::server_functions
