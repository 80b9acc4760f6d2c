// The norm of a block: its kernel's results with its own parameters, and its gradients beside what dx holds.
#include "stretto/layers/norm.hpp"

#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"

namespace stretto {
namespace {

constexpr std::int64_t rows = 6, hidden = 24;

TEST(Norm, IsTheKernelOfItsKindWithItsEpsilon) {
  const Tensor x = random_tensor({rows, hidden}, DType::f64, 1), dy = random_tensor({rows, hidden}, DType::f64, 2);
  const auto norm = [&](double epsilon) {
    Parameters parameters;
    const Norm its(parameters, "norm", hidden, {.kind = Norm::Kind::layer, .epsilon = epsilon}, {});
    EXPECT_EQ(parameters.all().size(), 2U);
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    ParameterUse use;
    Norm::Saved saved;
    const Tensor y = its.forward(x, saved, use);
    const Tensor dx = x.clone();
    its.backward(dy, saved, dx, use);
    return std::vector{y, dx, parameters.all()[0]->gradient, parameters.all()[1]->gradient};
  };
  const auto expected = [&](double epsilon) {
    const Tensor gamma({hidden}, DType::f64), beta = Tensor::zeros({hidden}, DType::f64);
    for (std::int64_t i = 0; i < hidden; ++i) gamma.set(i, 1);
    const Tensor y(x.shape(), DType::f64), mean({rows}, DType::f64), rstd({rows}, DType::f64), dx = x.clone();
    const Tensor dgamma = Tensor::zeros({hidden}, DType::f64), dbeta = Tensor::zeros({hidden}, DType::f64);
    kernels::layer_norm_forward(x, gamma, beta, epsilon, y, mean, rstd);
    kernels::layer_norm_backward(x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
    return std::vector{y, dx, dgamma, dbeta};
  };
  EXPECT_TRUE(same_bits(norm(1e-5), expected(1e-5)));
  EXPECT_TRUE(same_bits(norm(0.25), expected(0.25)));
  EXPECT_FALSE(same_bits(norm(0.25), expected(1e-5))) << "the control";
}

}  // namespace
}  // namespace stretto
