#include <gtest/gtest.h>

#include <limits>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

const double root = std::sqrt(2 / std::acos(-1.0));

// y = x g with the gate g = (1 + tanh u) / 2 = 1 / (1 + exp(-2u)); the second form is exact where y vanishes.
double gate(double x) { return 1 / (1 + std::exp(-2 * root * (x + 0.044715 * x * x * x))); }

double gelu(double x) { return x * gate(x); }

double gelu_derivative(double x) {
  const double g = gate(x);
  return g + x * g * (1 - g) * 2 * root * (1 + 3 * 0.044715 * x * x);
}

// In bf16, the exponential and the division have an error of 1.4e-4 before the result is rounded.
double slack(DType dtype) { return dtype == DType::bf16 ? 1.05 : 1; }

// A network sees the absolute error, in units of gelu(1); the error relative to y grows with the exponent.
TEST(Gelu, EqualsItsFormula) {
  for (const DType dtype : compute_types) {
    const Tensor x = activation_inputs(dtype);
    const Tensor y(x.shape(), dtype);
    gelu_forward(x, y);
    expect_close(y, applied(x, gelu), 1e-2, slack(dtype));
    const Tensor dy = random_tensor(x.shape(), dtype);
    const Tensor dx(x.shape(), dtype);
    gelu_backward(x, dy, dx);
    std::vector<double> expected = applied(x, gelu_derivative);
    for (std::int64_t i = 0; i < x.size(); ++i) expected[static_cast<std::size_t>(i)] *= dy.at(i);
    expect_close(dx, expected, 0.5, slack(dtype));
  }
}

TEST(Gelu, KeepsRelativeAccuracyWhereItVanishes) {
  const Tensor x = activation_inputs(DType::f64);
  const Tensor y(x.shape(), DType::f64);
  gelu_forward(x, y);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (x.at(i) < -9) continue;
    ASSERT_NEAR(y.at(i), gelu(x.at(i)), 1e-12 * std::abs(gelu(x.at(i)))) << x.at(i);
  }
}

TEST(Gelu, DerivativeIsTheSlope) {
  const Tensor x = random_tensor({1000}, DType::f64, 1, 2);
  const Tensor one({1000}, DType::f64);
  const Tensor low({1000}, DType::f64);
  const Tensor high({1000}, DType::f64);
  const double h = 1e-5;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    one.set(i, 1);
    low.set(i, x.at(i) - h);
    high.set(i, x.at(i) + h);
  }
  const Tensor dx({1000}, DType::f64);
  gelu_backward(x, one, dx);
  gelu_forward(low, low);
  gelu_forward(high, high);
  for (std::int64_t i = 0; i < x.size(); ++i) EXPECT_NEAR(dx.at(i), (high.at(i) - low.at(i)) / (2 * h), 1e-9);
}

TEST(Gelu, HugeNumbersDoNotOverflowAndNanStays) {
  for (const DType dtype : compute_types) {
    const double huge = dtype == DType::f16 ? 6e4 : 1e30;
    const Tensor x = tensor_of({huge, -huge, 1e4, -1e4, 0.0, std::numeric_limits<double>::quiet_NaN()}, dtype);
    const Tensor y(x.shape(), dtype);
    gelu_forward(x, y);
    EXPECT_EQ(y.at(0), x.at(0));
    EXPECT_NEAR(y.at(1), 0, 1e-7);
    EXPECT_EQ(y.at(2), x.at(2));
    EXPECT_NEAR(y.at(3), 0, 1e-30);
    EXPECT_EQ(y.at(4), 0);
    EXPECT_TRUE(std::isnan(y.at(5)));
    gelu_backward(x, tensor_of({1, 1, 1, 1, 1, 1}, dtype), y);
    EXPECT_EQ(y.at(0), 1);
    EXPECT_NEAR(y.at(1), 0, 1e-30);
    EXPECT_EQ(y.at(2), 1);
    EXPECT_NEAR(y.at(3), 0, 1e-30);
    EXPECT_EQ(y.at(4), 0.5);
    EXPECT_TRUE(std::isnan(y.at(5)));
  }
}

TEST(Gelu, DoesNotDependOnWhereAnElementLies) {
  for (const DType dtype : compute_types) {
    const Tensor x = random_tensor({1100}, dtype);
    const Tensor y(x.shape(), dtype);
    gelu_forward(x, y);
    for (const std::int64_t size : kernel_sizes) {
      for (const std::int64_t offset : kernel_offsets) {
        const Tensor part({size}, dtype);
        gelu_forward(x.view(offset, {size}), part);
        EXPECT_EQ(values(part), values(y.view(offset, {size})));
      }
    }
  }
}

TEST(Gelu, FusedWithABiasIsTheTwoAfterEachOther) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 17, 65, 256}) {
      const Tensor x = random_tensor({5, columns}, dtype, 1);
      const Tensor bias = random_tensor({columns}, dtype, 2);
      const Tensor fused = x.clone();
      const Tensor y(x.shape(), dtype);
      add_bias_gelu(fused, bias, y);
      add_bias(x, bias);
      EXPECT_EQ(values(fused), values(x));
      gelu_forward(x, x);
      EXPECT_EQ(values(y), values(x));
    }
  }
}

TEST(Gelu, IsAccurateWithEveryInstructionSet) {
  on_each_instruction_set([&] {
    for (const DType dtype : compute_types) {
      const Tensor x = activation_inputs(dtype);
      const Tensor y(x.shape(), dtype);
      gelu_forward(x, y);
      expect_close(y, applied(x, gelu), 1e-2, slack(dtype));
    }
  });
}

TEST(Gelu, ArgumentsMustFit) {
  const Tensor x({2, 4}, DType::f32);
  EXPECT_THROW(gelu_forward(x, Tensor({7}, DType::f32)), Error);
  EXPECT_THROW(gelu_backward(x, Tensor({8}, DType::bf16), x), Error);
  EXPECT_THROW(add_bias_gelu(x, Tensor({8}, DType::f32), x), Error);
  EXPECT_THROW(gelu_forward(Tensor({2}, DType::f8e5m2), Tensor({2}, DType::f8e5m2)), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
