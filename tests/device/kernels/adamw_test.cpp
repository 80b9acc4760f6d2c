#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

// The optimizer's state in double precision, one parameter at a time.
struct Reference {
  std::vector<double> p, m, v;

  void step(const AdamWStep& options, const Tensor& gradient) {
    const double c1 = 1 - std::pow(options.beta1, static_cast<double>(options.step));
    const double c2 = 1 - std::pow(options.beta2, static_cast<double>(options.step));
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient.at(static_cast<std::int64_t>(i)) * options.gradient_scale;
      p[i] -= options.lr * options.weight_decay * p[i];
      m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
      v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
      p[i] -= options.lr * (m[i] / c1) / (std::sqrt(v[i] / c2) + options.epsilon);
    }
  }
};

TEST(AdamW, EqualsItsFormulaOverSeveralSteps) {
  for (const auto& [dtype, gradient_type] : gradient_types) {
    for (const std::int64_t size : kernel_sizes) {
      const DType wide = accumulator(dtype);
      const Tensor master = random_tensor({size}, wide, 1);
      const Tensor parameter = dtype == wide ? master : Tensor({size}, dtype);
      const Tensor m = Tensor::zeros({size}, wide);
      const Tensor v = Tensor::zeros({size}, wide);
      Reference expected{values(master), values(m), values(v)};
      AdamWStep options{.lr = 1e-2, .gradient_scale = 0.7};
      for (options.step = 1; options.step <= 5; ++options.step) {
        const Tensor gradient = random_tensor({size}, gradient_type, static_cast<unsigned>(10 + options.step));
        adamw(options, gradient, master, m, v, parameter);
        expected.step(options, gradient);
      }
      expect_close(master, expected.p, 1, 8);
      expect_close(m, expected.m, 1, 8);
      expect_close(v, expected.v, 1, 8);
      const Tensor rounded({size}, dtype);
      convert(master, rounded);
      EXPECT_EQ(values(parameter), values(rounded));
    }
  }
}

// Updating shards on several ranks gives the bits of updating all parameters on one.
TEST(AdamW, DoesNotDependOnHowParametersAreSharded) {
  const std::int64_t size = 1000;
  const Tensor gradient = random_tensor({size}, DType::f32, 1);
  const auto step = [&](const std::vector<std::int64_t>& shards) {
    const Tensor master = random_tensor({size}, DType::f32, 2);
    const Tensor m = random_tensor({size}, DType::f32, 3, 0.1);
    const Tensor v = Tensor::zeros({size}, DType::f32);
    std::int64_t start = 0;
    for (const std::int64_t shard : shards) {
      const auto part = [&](const Tensor& tensor) { return tensor.view(start, {shard}); };
      adamw({}, part(gradient), part(master), part(m), part(v), part(master));
      start += shard;
    }
    return values(master);
  };
  EXPECT_EQ(step({333, 334, 333}), step({1000}));
}

TEST(AdamW, ArgumentsMustFit) {
  const Tensor wide = Tensor::zeros({4}, DType::f32);
  const Tensor other = Tensor::zeros({4}, DType::f32);
  const Tensor narrow = Tensor::zeros({4}, DType::bf16);
  EXPECT_NO_THROW(adamw({}, wide, wide, wide, wide, narrow));
  EXPECT_NO_THROW(adamw({}, narrow, wide, wide, wide, narrow));
  EXPECT_THROW(adamw({}, Tensor({4}, DType::f16), wide, wide, wide, narrow), Error);
  EXPECT_THROW(adamw({}, narrow, wide, wide, wide, wide), Error);
  EXPECT_THROW(adamw({}, wide, narrow, wide, wide, narrow), Error);
  EXPECT_THROW(adamw({}, wide, wide, wide, wide, other), Error);
  EXPECT_THROW(adamw({.step = 0}, wide, wide, wide, wide, wide), Error);
  EXPECT_THROW(adamw({}, wide, Tensor({5}, DType::f32), wide, wide, narrow), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
