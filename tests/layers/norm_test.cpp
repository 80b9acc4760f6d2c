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

constexpr std::int64_t norm_rows = 6, norm_width = 24;

TEST(Norm, IsTheKernelOfItsKindWithItsEpsilon) {
  const Tensor x = random_tensor({norm_rows, norm_width}, DType::f64, 1),
               dy = random_tensor({norm_rows, norm_width}, DType::f64, 2);
  const auto norm = [&](double epsilon) {
    Parameters parameters;
    const Norm its(parameters, "norm", norm_width, {.kind = Norm::Kind::layer, .epsilon = epsilon}, {});
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
    const Tensor gamma({norm_width}, DType::f64), beta = Tensor::zeros({norm_width}, DType::f64);
    for (std::int64_t i = 0; i < norm_width; ++i) gamma.set(i, 1);
    const Tensor y(x.shape(), DType::f64), mean({norm_rows}, DType::f64), rstd({norm_rows}, DType::f64), dx = x.clone();
    const Tensor dgamma = Tensor::zeros({norm_width}, DType::f64), dbeta = Tensor::zeros({norm_width}, DType::f64);
    kernels::layer_norm_forward(x, gamma, beta, epsilon, y, mean, rstd);
    kernels::layer_norm_backward(x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
    return std::vector{y, dx, dgamma, dbeta};
  };
  EXPECT_TRUE(same_bits(norm(1e-5), expected(1e-5)));
  EXPECT_TRUE(same_bits(norm(0.25), expected(0.25)));
  EXPECT_FALSE(same_bits(norm(0.25), expected(1e-5))) << "the control";
}

TEST(Norm, OfRootMeanSquaresHasAWeightAlone) {
  const Tensor x = random_tensor({norm_rows, norm_width}, DType::f64, 1),
               dy = random_tensor({norm_rows, norm_width}, DType::f64, 2);
  const auto norm = [&](Norm::Kind kind, bool trainable = true) {
    Parameters parameters;
    const Norm its(parameters, "norm", norm_width, {.kind = kind, .epsilon = 0.25}, {});
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    Parameter& weight = *parameters.all()[0];
    weight.value.copy_from(random_tensor({norm_width}, DType::f64, 3));
    weight.trainable = trainable;
    ParameterUse use;
    Norm::Saved saved;
    const Tensor y = its.forward(x, saved, use);
    EXPECT_EQ(static_cast<bool>(saved.mean), kind == Norm::Kind::layer);
    const Tensor dx = x.clone();
    its.backward(dy, saved, dx, use);
    EXPECT_EQ(parameters.all().size(), kind == Norm::Kind::layer ? 2U : 1U);
    return std::vector{y, dx, weight.gradient};
  };
  const Tensor gamma = random_tensor({norm_width}, DType::f64, 3), dgamma = Tensor::zeros({norm_width}, DType::f64);
  const Tensor y(x.shape(), DType::f64), rstd({norm_rows}, DType::f64), dx = x.clone();
  kernels::rms_norm_forward(x, gamma, 0.25, y, rstd);
  kernels::rms_norm_backward(x, gamma, rstd, dy, dx, dgamma);
  EXPECT_TRUE(same_bits(norm(Norm::Kind::rms), {y, dx, dgamma}));
  EXPECT_TRUE(same_bits(norm(Norm::Kind::rms, false), {y, dx, Tensor::zeros({norm_width}, DType::f64)}));
  EXPECT_FALSE(same_bits(norm(Norm::Kind::layer), {y, dx, dgamma})) << "the control";
}

}  // namespace
}  // namespace stretto
