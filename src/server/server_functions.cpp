#include "core/fail.hpp"
#include "stretto/server.hpp"

namespace stretto::server_functions {

ServerFunction sum() {
  return {[](std::int64_t, std::int64_t) -> ServerUpdate {
            return [](const Tensor& values, const Tensor& pushed, std::int64_t) {
              kernels::reduce(ReduceOp::sum, values.dtype(), values.raw(), pushed.raw(), values.raw(), values.size());
            };
          },
          false};
}

ServerFunction assign() {
  return {[](std::int64_t, std::int64_t) -> ServerUpdate {
            return [](const Tensor& values, const Tensor& pushed, std::int64_t) { values.copy_from(pushed); };
          },
          false};
}

ServerFunction sgd(const kernels::SGDStep& step) {
  return {[step](std::int64_t, std::int64_t) -> ServerUpdate {
            return [step, b = Tensor()](const Tensor& values, const Tensor& pushed, std::int64_t) mutable {
              if (step.momentum != 0 && !b) b = Tensor::zeros(values.shape(), values.dtype());
              kernels::sgd(step, pushed, values, b, values);
            };
          },
          step.momentum != 0};
}

ServerFunction adamw(const kernels::AdamWStep& step) {
  return {[step](std::int64_t, std::int64_t) -> ServerUpdate {
            return [step, m = Tensor(), v = Tensor()](const Tensor& values, const Tensor& pushed,
                                                      std::int64_t updates) mutable {
              if (!m) {
                m = Tensor::zeros(values.shape(), values.dtype());
                v = Tensor::zeros(values.shape(), values.dtype());
              }
              kernels::AdamWStep next = step;
              next.step = updates + 1;
              kernels::adamw(next, pushed, values, m, v, values);
            };
          },
          true};
}

}  // namespace stretto::server_functions
