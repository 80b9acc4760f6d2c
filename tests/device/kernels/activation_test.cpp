// The activations of which no kernel of their own is public: GELU by the error function, and SiLU as a gate.
#include <gtest/gtest.h>

#include <limits>
#include <numbers>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

double phi(double x) { return std::erfc(-x * std::numbers::sqrt2 / 2) / 2; }
double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double gelu(double x) { return x * phi(x); }
double gelu_slope(double x) { return phi(x) + x * density(x); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

// In bf16, the exponential and the division have an error of 1.4e-4 before the result is rounded.
double slack(DType dtype) { return dtype == DType::bf16 ? 1.1 : 1; }

void expect_gelu_is_its_formula(DType dtype) {
  const Tensor x = activation_inputs(dtype), y(x.shape(), dtype), dy = random_tensor(x.shape(), dtype), dx(x.shape(), dtype);
  activation_forward(Activation::gelu, x, y);
  expect_close(y, applied(x, gelu), 1e-2, slack(dtype));
  activation_backward(Activation::gelu, x, dy, dx);
  std::vector<double> expected = applied(x, gelu_slope);
  for (std::int64_t i = 0; i < x.size(); ++i) expected[static_cast<std::size_t>(i)] *= dy.at(i);
  expect_close(dx, expected, 0.5, slack(dtype));
}

TEST(GeluErf, EqualsItsFormula) {
  for (const DType dtype : compute_types) expect_gelu_is_its_formula(dtype);
  double largest = 0;
  for (const double x : values(activation_inputs(DType::f64))) {
    const double tanh_form = x * sigmoid(2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
    largest = std::max(largest, std::abs(tanh_form - gelu(x)));
  }
  EXPECT_GT(largest, 4e-4) << "the control: its tanh form";
}

TEST(GeluErf, KeepsRelativeAccuracyWhereItVanishes) {
  const Tensor x = activation_inputs(DType::f64), y(x.shape(), DType::f64);
  activation_forward(Activation::gelu, x, y);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (x.at(i) < -30) continue;
    ASSERT_NEAR(y.at(i), gelu(x.at(i)), 1e-13 * (1 + x.at(i) * x.at(i)) * std::abs(gelu(x.at(i)))) << x.at(i);
  }
}

TEST(GeluErf, HugeNumbersDoNotOverflowAndNanStays) {
  for (const DType dtype : compute_types) {
    const double huge = dtype == DType::f16 ? 6e4 : 1e30;
    const Tensor x = tensor_of({huge, -huge, 1e4, -1e4, 0.0, no_number}, dtype), y(x.shape(), dtype);
    const auto expect = [&](double at_zero, double open) {
      EXPECT_EQ(y.at(0), open > 0 ? open : x.at(0));
      EXPECT_NEAR(y.at(1), 0, 1e-7);
      EXPECT_EQ(y.at(2), open > 0 ? open : x.at(2));
      EXPECT_NEAR(y.at(3), 0, 1e-30);
      EXPECT_EQ(y.at(4), at_zero);
      EXPECT_TRUE(std::isnan(y.at(5)));
    };
    activation_forward(Activation::gelu, x, y);
    expect(0, 0);
    activation_backward(Activation::gelu, x, tensor_of({1, 1, 1, 1, 1, 1}, dtype), y);
    expect(0.5, 1);
  }
}

// Rows of gates and ups, their activation, and gradients.
struct Gated {
  Gated(std::int64_t rows, std::int64_t columns, DType dtype)
      : x(random_tensor({rows, 2 * columns}, dtype, 1, 3)),
        dy(random_tensor({rows, columns}, dtype, 2)),
        y(Shape{rows, columns}, dtype),
        dx(Shape{rows, 2 * columns}, dtype) {}
  void compute() const {
    activation_forward(Activation::silu_gate, x, y);
    activation_backward(Activation::silu_gate, x, dy, dx);
  }
  double gate(std::int64_t row, std::int64_t c) const { return x.at(row * x.columns() + c); }
  double up(std::int64_t row, std::int64_t c) const { return x.at(row * x.columns() + y.columns() + c); }
  // The expected activation and gradients; if `swapped`, those of ups that gate.
  std::vector<double> forward(bool swapped = false) const {
    std::vector<double> result;
    for (std::int64_t row = 0; row < y.rows(); ++row) {
      for (std::int64_t c = 0; c < y.columns(); ++c) {
        result.push_back(swapped ? silu(up(row, c)) * gate(row, c) : silu(gate(row, c)) * up(row, c));
      }
    }
    return result;
  }
  std::vector<double> backward() const {
    std::vector<double> result;
    for (std::int64_t row = 0; row < y.rows(); ++row) {
      const auto d = [&](std::int64_t c) { return dy.at(row * dy.columns() + c); };
      for (std::int64_t c = 0; c < y.columns(); ++c) result.push_back(d(c) * up(row, c) * silu_slope(gate(row, c)));
      for (std::int64_t c = 0; c < y.columns(); ++c) result.push_back(d(c) * silu(gate(row, c)));
    }
    return result;
  }

  Tensor x, dy, y, dx;
};

void expect_gate_is_its_formula(DType dtype, std::int64_t columns) {
  const Gated gated(5, columns, dtype);
  gated.compute();
  expect_close(gated.y, gated.forward(), 0.1, slack(dtype));
  expect_close(gated.dx, gated.backward(), 2, slack(dtype));  // a gradient of many times its slope, which may vanish
}

TEST(SiluGate, EqualsItsFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : kernel_sizes) expect_gate_is_its_formula(dtype, columns);
  }
}

TEST(SiluGate, IsTheFirstProduct) {
  const Gated gated(2, 9, DType::f64);
  gated.compute();
  expect_close(gated.y, gated.forward(), 1);
  EXPECT_GT(std::abs(gated.y.at(0) - gated.forward(true)[0]), 1e-3) << "the control";
}

TEST(SiluGate, GradientsAreSlopes) {
  const Gated gated(3, 11, DType::f64);
  gated.compute();
  const auto loss = [&] {
    activation_forward(Activation::silu_gate, gated.x, gated.y);
    double sum = 0;
    for (std::int64_t i = 0; i < gated.y.size(); ++i) sum += gated.y.at(i) * gated.dy.at(i);
    return sum;
  };
  for (std::int64_t i = 0; i < gated.x.size(); ++i) {
    const double h = 1e-6, value = gated.x.at(i);
    gated.x.set(i, value + h);
    const double high = loss();
    gated.x.set(i, value - h);
    EXPECT_NEAR(gated.dx.at(i), (high - loss()) / (2 * h), 1e-7);
    gated.x.set(i, value);
  }
}

TEST(SiluGate, HugeGatesDoNotOverflowAndNanStays) {
  for (const DType dtype : compute_types) {
    const double huge = dtype == DType::f16 ? 6e4 : 1e30;
    const std::vector<double> gates{huge, -huge, 100, -1e4, 0, no_number};
    std::vector<double> row = gates;
    row.insert(row.end(), gates.size(), 1);
    const Tensor x = tensor_of(row, dtype).reshaped({1, 12}), y({1, 6}, dtype), dx({1, 12}, dtype);
    activation_forward(Activation::silu_gate, x, y);
    EXPECT_EQ(y.at(0), x.at(0));
    EXPECT_NEAR(y.at(1), 0, 1e-7);
    EXPECT_EQ(y.at(2), x.at(2));
    EXPECT_NEAR(y.at(3), 0, 1e-30);
    EXPECT_EQ(y.at(4), 0);
    EXPECT_TRUE(std::isnan(y.at(5)));
    activation_backward(Activation::silu_gate, x, tensor_of({1, 1, 1, 1, 1, 1}, dtype).reshaped({1, 6}), dx);
    EXPECT_EQ(dx.at(0), 1);
    EXPECT_NEAR(dx.at(1), 0, 1e-30);
    EXPECT_EQ(dx.at(4), 0.5);
    EXPECT_TRUE(std::isnan(dx.at(5)));
    EXPECT_EQ(dx.at(6), x.at(0));
    EXPECT_TRUE(std::isnan(dx.at(11)));
  }
}

TEST(SiluGate, DoesNotDependOnWhereAnElementLies) {
  for (const DType dtype : compute_types) {
    const Gated whole(1, 1000, dtype);
    whole.compute();
    for (const std::int64_t size : {1, 17, 65}) {
      const Tensor x({1, 2 * size}, dtype), y({1, size}, dtype);
      for (std::int64_t c = 0; c < size; ++c) {
        x.set(c, whole.gate(0, c + 5));
        x.set(size + c, whole.up(0, c + 5));
      }
      activation_forward(Activation::silu_gate, x, y);
      EXPECT_EQ(values(y), values(whole.y.view(5, {size})));
    }
  }
}

TEST(SiluGate, AndGeluErfAreAccurateWithEveryInstructionSet) {
  on_each_instruction_set([&] {
    for (const DType dtype : compute_types) {
      expect_gelu_is_its_formula(dtype);
      expect_gate_is_its_formula(dtype, 83);
    }
  });
}

TEST(SiluGate, ArgumentsMustFit) {
  const Tensor x({2, 8}, DType::f32), y({2, 4}, DType::f32);
  EXPECT_THROW(activation_forward(Activation::silu_gate, y, y), Error);
  EXPECT_THROW(activation_forward(Activation::silu_gate, x.reshaped({4, 4}), y), Error);
  EXPECT_THROW(activation_forward(Activation::silu_gate, x, Tensor({2, 4}, DType::f64)), Error);
  EXPECT_THROW(activation_backward(Activation::silu_gate, x, y, y), Error);
  EXPECT_THROW(activation_forward(Activation::gelu, x, y), Error);
  EXPECT_NO_THROW(activation_backward(Activation::silu_gate, x, y, x));
}

}  // namespace
}  // namespace stretto::kernels::tested
