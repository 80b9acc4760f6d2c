#include "device/kernels/frozen_adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "device/kernels/kernel_data.hpp"
#include "stand_in/on_host_gpu.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

TEST(FrozenAdamW, EqualsItsFormula) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t size : kernel_sizes) {
      for (const double limit : {0.0, 0.5}) {
        const DType wide = accumulator(dtype);
        const Tensor master = random_tensor({size}, wide, 1), m = random_tensor({size}, wide, 2);
        const Tensor v = random_tensor({size}, wide, 3);
        for (std::int64_t i = 0; i < size; ++i) v.set(i, i % 3 == 0 ? 0 : 0.01 + std::abs(v.at(i)));
        const Tensor parameter = dtype == wide ? master : Tensor({size}, dtype);
        std::vector<double> p = values(master);
        frozen_adamw({.lr = 0.1,
                      .epsilon = 1e-3,
                      .weight_decay = 0.01,
                      .correction1 = 0.5,
                      .correction2 = 0.25,
                      .limit = limit,
                      .factor = 0.75},
                     master, m, v, parameter);
        for (std::size_t i = 0; i < p.size(); ++i) {
          const auto at = static_cast<std::int64_t>(i);
          double ratio = m.at(at) / 0.5 / (std::sqrt(v.at(at) / 0.25) + 1e-3);
          if (limit > 0) ratio = std::clamp(ratio, -limit, limit);
          if (v.at(at) == 0) ratio = 0;
          p[i] -= 0.1 * 0.01 * p[i];
          p[i] -= 0.1 * 0.75 * ratio;
        }
        expect_close(master, p, 1, 8);
        const Tensor rounded({size}, dtype);
        convert(master, rounded);
        EXPECT_EQ(values(parameter), values(rounded));
      }
    }
  }
}

// With the m and v that a step of AdamW leaves behind, it is that step, bit for bit.
TEST(FrozenAdamW, IsAStepOfAdamWWithTheSameMAndV) {
  for (const std::int64_t size : kernel_sizes) {
    const Tensor p = random_tensor({size}, DType::f32, 1), q = p.clone(), g = random_tensor({size}, DType::f32, 2);
    const Tensor m = Tensor::zeros({size}, DType::f32), v = Tensor::zeros({size}, DType::f32);
    const AdamWStep step{.step = 3};
    adamw(step, g, p, m, v, p);
    frozen_adamw({.correction1 = 1 - std::pow(step.beta1, 3), .correction2 = 1 - std::pow(step.beta2, 3)}, q, m, v, q);
    EXPECT_EQ(values(q), values(p));
  }
}

TEST(FrozenAdamW, ArgumentsMustFit) {
  const Tensor wide = Tensor::zeros({4}, DType::f32), narrow = Tensor::zeros({4}, DType::bf16);
  EXPECT_NO_THROW(frozen_adamw({}, wide, wide, wide, narrow));
  EXPECT_THROW(frozen_adamw({}, narrow, wide, wide, narrow), Error);
  EXPECT_THROW(frozen_adamw({}, wide, narrow, wide, narrow), Error);
  EXPECT_THROW(frozen_adamw({}, wide, wide, Tensor({5}, DType::f32), narrow), Error);
  EXPECT_THROW(frozen_adamw({}, wide, wide, wide, Tensor::zeros({4}, DType::f32)), Error);
}

// 1-bit Adam, whose step it is, refuses a GPU as well.
using FrozenAdamWOnAGpu = OnHostGpu<>;
TEST_F(FrozenAdamWOnAGpu, IsRefusedByName) {
  const OnDevice here(Device::cuda);
  const Tensor there({4}, DType::f32);
  EXPECT_EQ(sentence_of([&] { frozen_adamw({}, there, there, there, there); }),
            "frozen_adamw runs on the host; give tensors in host memory.");
}

}  // namespace
}  // namespace stretto::kernels::tested
