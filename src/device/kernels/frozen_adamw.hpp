#pragma once
#include "stretto/tensor.hpp"

namespace stretto::kernels {

struct FrozenAdamWStep {
  double lr = 1e-3, epsilon = 1e-8, weight_decay = 0.1;
  double correction1 = 1, correction2 = 1;  // c1 and c2 of AdamWStep at the step whose v it is
  double limit = 0;                         // of the ratio; 0: none
  double factor = 1;                        // multiplies the ratio, for example to clip it
};
// A step of AdamW (kernels::adamw) with m and v as they are: p -= lr * weight_decay * p; then p -= lr * factor * ratio with
// ratio = (m/c1) / (sqrt(v/c2) + eps), cut off at -limit and limit, and 0 where v is 0. Tensors as for adamw(). On the host
// only.
STRETTO_API void frozen_adamw(const FrozenAdamWStep& options, const Tensor& master, const Tensor& m, const Tensor& v,
                              const Tensor& parameter);

namespace cpu {
void frozen_adamw(const FrozenAdamWStep& options, const Tensor& master, const Tensor& m, const Tensor& v,
                  const Tensor& parameter);
}  // namespace cpu

}  // namespace stretto::kernels
