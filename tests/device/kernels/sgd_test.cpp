#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

TEST(SGD, EqualsItsFormulaOverSeveralSteps) {
  for (const auto& [dtype, gradient_type] : gradient_types) {
    for (const std::int64_t size : kernel_sizes) {
      for (const double momentum : {0.0, 0.75}) {
        const DType wide = accumulator(dtype);
        const Tensor master = random_tensor({size}, wide, 1);
        const Tensor parameter = dtype == wide ? master : Tensor({size}, dtype);
        const Tensor b = momentum == 0 ? Tensor() : Tensor::zeros({size}, wide);
        std::vector<double> p = values(master), sums(p.size());
        const SGDStep options{.lr = 0.1, .momentum = momentum, .weight_decay = 0.01, .gradient_scale = 0.7};
        for (unsigned step = 0; step < 5; ++step) {
          const Tensor gradient = random_tensor({size}, gradient_type, 10 + step);
          sgd(options, gradient, master, b, parameter);
          for (std::size_t i = 0; i < p.size(); ++i) {
            const double g = gradient.at(static_cast<std::int64_t>(i)) * 0.7 + 0.01 * p[i];
            sums[i] = momentum * sums[i] + g;
            p[i] -= 0.1 * sums[i];
          }
        }
        expect_close(master, p, 1, 8);
        if (b) expect_close(b, sums, 1, 8);
        const Tensor rounded({size}, dtype);
        convert(master, rounded);
        EXPECT_EQ(values(parameter), values(rounded));
      }
    }
  }
}

// Two steps of torch.optim.SGD([2.0], lr=0.5, momentum=0.5, weight_decay=0.25) with the gradients 1 and -2.
TEST(SGD, IsPyTorchs) {
  const Tensor p = Tensor::of<float>({2}), b = Tensor::zeros({1}, DType::f32);
  const SGDStep options{.lr = 0.5, .momentum = 0.5, .weight_decay = 0.25};
  sgd(options, Tensor::of<float>({1}), p, b, p);
  EXPECT_EQ(p.at(0), 1.25);
  sgd(options, Tensor::of<float>({-2}), p, b, p);
  EXPECT_EQ(p.at(0), 1.71875);
  EXPECT_EQ(b.at(0), -0.9375);
}

TEST(SGD, ArgumentsMustFit) {
  const Tensor wide = Tensor::zeros({4}, DType::f32);
  const Tensor other = Tensor::zeros({4}, DType::f32);
  const Tensor narrow = Tensor::zeros({4}, DType::bf16);
  EXPECT_NO_THROW(sgd({}, wide, wide, wide, narrow));
  EXPECT_NO_THROW(sgd({.momentum = 0}, narrow, wide, {}, narrow));
  EXPECT_THROW(sgd({.momentum = 0}, narrow, wide, other, narrow), Error);
  EXPECT_THROW(sgd({}, narrow, wide, {}, narrow), Error);
  EXPECT_THROW(sgd({}, Tensor({4}, DType::f16), wide, wide, narrow), Error);
  EXPECT_THROW(sgd({}, wide, narrow, wide, narrow), Error);
  EXPECT_THROW(sgd({}, wide, wide, wide, other), Error);
  EXPECT_THROW(sgd({}, wide, wide, Tensor({5}, DType::f32), narrow), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
