#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>

#include "device/cpu/matmul_primitive.hpp"
#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

// Small whole numbers: every sum is exact in every type, in every order.
Tensor whole_numbers(const Shape& shape, DType dtype, std::int64_t seed) {
  Tensor x(shape, dtype);
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, static_cast<double>((i * 7 + seed) % 5 - 2));
  return x;
}

struct Case {
  Tensor a, b, c;
  cpu::Product product;

  Case(const cpu::Product& p, DType dtype, DType dtype_c)
      : a(whole_numbers(p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, dtype, 1)),
        b(whole_numbers(p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, dtype, 2)),
        c(whole_numbers({p.m, p.n}, dtype_c, 3)),
        product(p) {}

  void run() const { gemm(a, Transpose{product.transpose_a}, b, Transpose{product.transpose_b}, c, product.accumulate); }
};

Tensor oracle(const Case& given) {
  const auto& [transpose_a, transpose_b, m, n, k, accumulate] = given.product;
  Tensor c = given.c.clone();
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = accumulate ? given.c.at(i * n + j) : 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += given.a.at(transpose_a ? l * m + i : i * k + l) * given.b.at(transpose_b ? j * k + l : l * n + j);
      }
      c.set(i * n + j, sum);  // rounds to the type of c once, as gemm must
    }
  }
  return c;
}

void expect_equal(const Tensor& actual, const Tensor& expected) {
  for (std::int64_t i = 0; i < expected.size(); ++i) ASSERT_EQ(actual.at(i), expected.at(i)) << "element " << i;
}

const std::tuple<std::int64_t, std::int64_t, std::int64_t> shapes[] = {
    {1, 1, 1}, {1, 7, 5},    {5, 1, 3},    {3, 4, 1},    {0, 3, 2},     {3, 0, 2},
    {3, 2, 0}, {17, 33, 65}, {64, 64, 64}, {9, 520, 31}, {31, 40, 600}, {40, 70, 700}};

class Gemm : public testing::TestWithParam<std::tuple<DType, DType>> {};

TEST_P(Gemm, EqualsTheSum) {
  const auto [dtype, dtype_c] = GetParam();
  for (const auto& [m, n, k] : shapes) {
    for (int choice = 0; choice < 8; ++choice) {
      const Case given({(choice & 1) != 0, (choice & 2) != 0, m, n, k, (choice & 4) != 0}, dtype, dtype_c);
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", choice " << choice);
      const Tensor expected = oracle(given);
      given.run();
      expect_equal(given.c, expected);
    }
  }
}

// gemm multiplies bf16 by primitives on processors with bf16 instructions only; oneDNN emulates them where there is AVX-512,
// and refuses below.
TEST_P(Gemm, EqualsTheSumInOneDnnPrimitives) {
  HOST_ONLY("oneDNN computes on the host");
  const auto [dtype, dtype_c] = GetParam();
  if (!cpu::has_matmul_primitive(dtype)) {
    const Case given({false, false, 1, 1, 1, false}, dtype, dtype_c);
    const auto multiply = [&, dtype = dtype, dtype_c = dtype_c] {
      cpu::matmul_primitive(given.product, dtype, given.a.raw(), given.b.raw(), dtype_c, given.c.raw());
    };
    ASSERT_NE(dtype, DType::f32);
    if (dtype == DType::bf16) {
      EXPECT_FALSE(cpu::processor_multiplies_bf16());
      EXPECT_THAT(sentence_of(multiply), testing::HasSubstr("oneDNN cannot multiply [1, 1] by [1, 1] in bf16"));
    }
    return;
  }
  for (const auto& [m, n, k] : shapes) {
    if (m * n * k == 0) continue;
    for (int choice = 0; choice < 8; ++choice) {
      const Case given({(choice & 1) != 0, (choice & 2) != 0, m, n, k, (choice & 4) != 0}, dtype, dtype_c);
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", choice " << choice);
      const Tensor expected = oracle(given);
      cpu::matmul_primitive(given.product, dtype, given.a.raw(), given.b.raw(), dtype_c, given.c.raw());
      expect_equal(given.c, expected);
    }
  }
}

TEST_P(Gemm, RunsInManyThreadsAtOnce) {
  const auto [dtype, dtype_c] = GetParam();
  for (const bool transpose_a : {false, true}) {
    const Case given({transpose_a, false, 70, 600, 200, false}, dtype, dtype_c);
    const Tensor expected = oracle(given);
    std::vector<Case> cases;
    for (int i = 0; i < 4; ++i) cases.emplace_back(given.product, dtype, dtype_c);
    {
      std::vector<std::jthread> threads;
      for (const Case& one : cases) {
        threads.emplace_back([&one] {
          for (int i = 0; i < 10; ++i) one.run();
        });
      }
    }
    for (const Case& one : cases) expect_equal(one.c, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Gemm,
                         testing::Values(std::tuple{DType::f64, DType::f64}, std::tuple{DType::f32, DType::f32},
                                         std::tuple{DType::bf16, DType::f32}, std::tuple{DType::bf16, DType::bf16},
                                         std::tuple{DType::f16, DType::f32}, std::tuple{DType::f16, DType::f16}),
                         [](const auto& parameter) {
                           return std::string(name(std::get<0>(parameter.param))) + "_into_" +
                                  name(std::get<1>(parameter.param));
                         });

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Sums are kept in f32: only a result that is too large for f16 is infinite.
TEST(GemmInF16, WhatIsTooLargeBecomesInfinite) {
  const Tensor a = tensor_of({300, 300}, DType::f16).reshaped({1, 2});
  const Tensor b = tensor_of({300, -300, 300, 1, 0, 0, -300, infinity}, DType::f16).reshaped({2, 4});
  const Tensor wide({1, 4}, DType::f32);
  const Tensor c({1, 4}, DType::f16);
  gemm(a, Transpose::no, b, Transpose::no, wide);
  EXPECT_EQ(values(wide), (std::vector<double>{90000, -90000, 0, infinity}));
  gemm(a, Transpose::no, b, Transpose::no, c);
  EXPECT_EQ(values(c), (std::vector<double>{infinity, -infinity, 0, infinity}));
  const Tensor added = tensor_of({-60000, 60000, 7, nan}, DType::f16).reshaped({1, 4});
  gemm(a, Transpose::no, b, Transpose::no, added, true);
  EXPECT_EQ(values(added.view(0, {3})), (std::vector<double>{30000, -30000, 7}));
  EXPECT_TRUE(std::isnan(added.at(3)));
}

TEST(GemmArguments, LeadingDimensionsAreRows) {
  const Tensor a = whole_numbers({2, 3, 4}, DType::f32, 1);
  const Tensor b = whole_numbers({5, 4}, DType::f32, 2);
  const Tensor c({2, 3, 5}, DType::f32);
  const Tensor flat({6, 5}, DType::f32);
  gemm(a, Transpose::no, b, Transpose::yes, c);
  gemm(a.reshaped({6, 4}), Transpose::no, b, Transpose::yes, flat);
  expect_equal(c, flat);
}

TEST(GemmArguments, WhatDoesNotFitIsRefused) {
  const auto make = [](const Shape& shape, DType dtype = DType::f32) { return Tensor(shape, dtype); };
  const auto multiply = [](const Tensor& a, const Tensor& b, const Tensor& c) {
    gemm(a, Transpose::no, b, Transpose::no, c);
  };
  EXPECT_THROW(multiply(make({2, 3}), make({4, 5}), make({2, 5})), Error);
  EXPECT_THROW(multiply(make({2, 3}), make({3, 5}), make({3, 5})), Error);
  EXPECT_THROW(multiply(make({2, 3}), make({3, 5}), make({2, 4})), Error);
  EXPECT_THROW(multiply(make({2, 3}), make({3, 5}, DType::bf16), make({2, 5})), Error);
  EXPECT_THROW(multiply(make({2, 3}), make({3, 5}), make({2, 5}, DType::f64)), Error);
  EXPECT_THROW(multiply(make({2, 3}), make({3, 5}), make({2, 5}, DType::bf16)), Error);
  EXPECT_THROW(multiply(make({2, 3}, DType::f16), make({3, 5}, DType::f16), make({2, 5}, DType::bf16)), Error);
  EXPECT_THROW(multiply(make({2, 3}, DType::i8), make({3, 5}, DType::i8), make({2, 5}, DType::i8)), Error);
  expect_refusal([&] { multiply(make({2, 3}), make({4, 5}), make({2, 5})); }, "[4, 5]");
}

// Rows, columns in and columns out. Sums stay small enough to be exact in bf16, before and after the bias is added.
const std::tuple<std::int64_t, std::int64_t, std::int64_t> layers[] = {
    {1, 1, 1}, {1, 16, 8},   {3, 5, 7},    {0, 3, 2},   {3, 0, 2},
    {3, 2, 0}, {17, 24, 40}, {64, 32, 64}, {9, 31, 33}, {130, 48, 136}};

class Linear : public testing::TestWithParam<DType> {};

TEST_P(Linear, IsTheProductAndItsBias) {
  for (const auto& [rows, in, out] : layers) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out);
    const Tensor x = whole_numbers({rows, in}, GetParam(), 1);
    const Tensor weight = whole_numbers({out, in}, GetParam(), 2);
    const Tensor bias = whole_numbers({out}, GetParam(), 4);
    const Tensor y({rows, out}, GetParam());
    const Tensor expected({rows, out}, GetParam());
    gemm(x, Transpose::no, weight, Transpose::yes, expected);
    add_bias(expected, bias);
    linear(x, weight, bias, y);
    expect_equal(y, expected);
  }
}

// A view that begins at an odd element is aligned to its elements only.
TEST_P(Linear, TakesAnyAlignment) {
  const auto shifted = [](const Tensor& tensor) {
    const Tensor longer({tensor.size() + 1}, tensor.dtype());
    Tensor result = longer.view(1, tensor.shape());
    result.copy_from(tensor);
    return result;
  };
  const Tensor x = whole_numbers({24, 16}, GetParam(), 1);
  const Tensor weight = whole_numbers({32, 16}, GetParam(), 2);
  const Tensor bias = whole_numbers({32}, GetParam(), 4);
  const Tensor before_gelu({24, 32}, GetParam());
  const Tensor y({24, 32}, GetParam());
  linear(x, weight, bias, before_gelu, {Activation::gelu_tanh, y});
  const Tensor shifted_before = shifted(before_gelu);
  const Tensor shifted_y = shifted(y);
  shifted_before.zero();
  linear(shifted(x), shifted(weight), shifted(bias), shifted_before, {Activation::gelu_tanh, shifted_y});
  expect_equal(shifted_before, before_gelu);
  linear(shifted(x), shifted(weight), shifted(bias), shifted_y);
  expect_equal(shifted_y, before_gelu);
  const Tensor zeros = Tensor::zeros({24, 32}, GetParam());
  linear_add(x, weight, shifted(bias), shifted(zeros), y);
  expect_equal(y, before_gelu);
  linear_add(x, weight, bias, shifted(zeros), y);
  expect_equal(y, before_gelu);
}

TEST_P(Linear, GeluIsOfTheSumThatIsKept) {
  const double tolerance = GetParam() == DType::f64 ? 1e-14 : GetParam() == DType::f32 ? 1e-6 : 1e-2;
  for (const auto& [rows, in, out] : layers) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out);
    const Tensor x = whole_numbers({rows, in}, GetParam(), 1);
    const Tensor weight = whole_numbers({out, in}, GetParam(), 2);
    const Tensor bias = whole_numbers({out}, GetParam(), 4);
    const Tensor before_gelu({rows, out}, GetParam());
    const Tensor y({rows, out}, GetParam());
    const Tensor sum({rows, out}, GetParam());
    linear(x, weight, bias, sum);
    linear(x, weight, bias, before_gelu, {Activation::gelu_tanh, y});
    expect_equal(before_gelu, sum);
    const Tensor expected({rows, out}, GetParam());
    gelu_forward(sum, expected);
    for (std::int64_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y.at(i), expected.at(i), tolerance * std::max(1.0, std::abs(expected.at(i)))) << "element " << i;
    }
  }
}

TEST_P(Linear, AddsToAResidual) {
  for (const auto& [rows, in, out] : layers) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out);
    const Tensor x = whole_numbers({rows, in}, GetParam(), 1);
    const Tensor weight = whole_numbers({out, in}, GetParam(), 2);
    const Tensor bias = whole_numbers({out}, GetParam(), 4);
    const Tensor residual = whole_numbers({rows, out}, GetParam(), 5);
    const Tensor y({rows, out}, GetParam());
    const Tensor expected({rows, out}, GetParam());
    linear(x, weight, bias, expected);
    add(residual, expected, expected);
    linear_add(x, weight, bias, residual, y);
    expect_equal(y, expected);
  }
}

TEST_P(Linear, GoesBackThroughGelu) {
  const double tolerance = GetParam() == DType::f64 ? 1e-14 : GetParam() == DType::f32 ? 1e-6 : 1e-2;
  for (const auto& [rows, in, out] : layers) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out);
    const Tensor dy = whole_numbers({rows, out}, GetParam(), 1);
    const Tensor weight = whole_numbers({out, in}, GetParam(), 2);
    const Tensor before_gelu = whole_numbers({rows, in}, GetParam(), 4);
    scale(before_gelu, 0.25);
    const Tensor dx({rows, in}, GetParam());
    const Tensor expected({rows, in}, GetParam());
    gemm(dy, Transpose::no, weight, Transpose::no, expected);
    double largest = 1;  // where GELU is flat, the error of a large product remains although dx is small
    for (std::int64_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(expected.at(i)));
    gelu_backward(before_gelu, expected, expected);
    linear_backward(dy, weight, dx, {Activation::gelu_tanh, before_gelu});
    for (std::int64_t i = 0; i < dx.size(); ++i) {
      ASSERT_NEAR(dx.at(i), expected.at(i), tolerance * largest) << "element " << i;
    }
  }
}

// A gate takes two products side by side: the result before it has twice the columns of what becomes of it.
TEST_P(Linear, GoesThroughAGateAndBack) {
  for (const auto& [rows, in, out] : layers) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out);
    const auto make = [rows = rows](std::int64_t columns) { return Tensor({rows, columns}, GetParam()); };
    const Tensor x = whole_numbers({rows, in}, GetParam(), 1), weight = whole_numbers({2 * out, in}, GetParam(), 2);
    const Tensor bias = whole_numbers({2 * out}, GetParam(), 4);
    const Tensor sum = make(2 * out), before = make(2 * out), y = make(out), expected = make(out);
    linear(x, weight, bias, sum);
    linear(x, weight, bias, before, {Activation::silu_gate, y});
    expect_equal(before, sum);
    activation_forward(Activation::silu_gate, sum, expected);
    expect_equal(y, expected);
    const Tensor dy = whole_numbers({rows, in}, GetParam(), 5), back = whole_numbers({in, out}, GetParam(), 6);
    const Tensor product = make(out), dx = make(2 * out), its_gradient = make(2 * out);
    gemm(dy, Transpose::no, back, Transpose::no, product);
    finish_linear_backward(product, its_gradient, {Activation::silu_gate, before});
    linear_backward(dy, back, dx, {Activation::silu_gate, before});
    expect_equal(dx, its_gradient);
  }
}

TEST_P(Linear, HasNoBiasUnlessItIsGiven) {
  for (const auto& [rows, in, out] : layers) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out);
    const Tensor x = whole_numbers({rows, in}, GetParam(), 1), weight = whole_numbers({out, in}, GetParam(), 2);
    const Tensor zeros = Tensor::zeros({out}, GetParam()), residual = whole_numbers({rows, out}, GetParam(), 5);
    const auto make = [shape = Shape{rows, out}] { return Tensor(shape, GetParam()); };
    const Tensor y = make(), activated = make(), sum = make(), product = make(), its_gelu = make(), expected = make();
    linear(x, weight, {}, y, {Activation::gelu_tanh, activated});
    linear_add(x, weight, {}, residual, sum);
    gemm(x, Transpose::no, weight, Transpose::yes, product);
    expect_equal(y, product);
    gelu_forward(product, its_gelu);
    expect_equal(activated, its_gelu);
    linear_add(x, weight, zeros, residual, expected);
    expect_equal(sum, expected);
  }
}

TEST_P(Linear, FinishesAProductThatIsThere) {
  const Tensor x = whole_numbers({24, 16}, GetParam(), 1), weight = whole_numbers({32, 16}, GetParam(), 2);
  const Tensor bias = whole_numbers({32}, GetParam(), 4);
  const auto make = [] { return Tensor({24, 32}, GetParam()); };
  const Tensor product = make(), activated = make(), expected = make(), its_gelu = make();
  gemm(x, Transpose::no, weight, Transpose::yes, product);
  finish_linear(product, bias, {Activation::gelu_tanh, activated});
  linear(x, weight, bias, expected);
  expect_equal(product, expected);
  gelu_forward(expected, its_gelu);
  expect_equal(activated, its_gelu);
}

// A weight of several parts is one matrix with the parts below each other; its bias likewise.
TEST_P(Linear, PartsOfAWeightLieBelowEachOther) {
  const Tensor x = whole_numbers({4, 16}, GetParam(), 1);
  const Tensor weight = whole_numbers({3, 8, 16}, GetParam(), 2);
  const Tensor bias = whole_numbers({3, 8}, GetParam(), 4);
  const Tensor y({4, 24}, GetParam());
  const Tensor flat({4, 24}, GetParam());
  linear(x, weight, bias, y);
  linear(x, weight.reshaped({24, 16}), bias.reshaped({24}), flat);
  expect_equal(y, flat);
}

INSTANTIATE_TEST_SUITE_P(Types, Linear, testing::ValuesIn(compute_types),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST(LinearInF16, WhatIsTooLargeBecomesInfinite) {
  const Tensor x = tensor_of({300}, DType::f16).reshaped({1, 1});
  const Tensor weight = tensor_of({300, -300, 200, 0}, DType::f16).reshaped({4, 1});
  const Tensor bias = tensor_of({1, 1, 60000, nan}, DType::f16);
  const Tensor y({1, 4}, DType::f16);
  const Tensor sum({1, 4}, DType::f16);
  const auto expect_too_large = [](const Tensor& result) {
    EXPECT_EQ(values(result.view(0, {3})), (std::vector<double>{infinity, -infinity, infinity}));
    EXPECT_TRUE(std::isnan(result.at(3)));
  };
  linear(x, weight, bias, y);
  expect_too_large(y);
  linear(x, weight, bias, sum, {Activation::gelu_tanh, y});
  expect_too_large(sum);
  linear_add(x, weight, bias, tensor_of({5, 5, 5, 5}, DType::f16).reshaped({1, 4}), y);
  expect_too_large(y);
}

TEST(LinearArguments, WhatDoesNotFitIsRefused) {
  const auto make = [](const Shape& shape, DType dtype = DType::f32) { return Tensor(shape, dtype); };
  const Tensor x = make({2, 3});
  const Tensor weight = make({5, 3});
  EXPECT_THROW(linear(x, make({3, 5}), make({5}), make({2, 5})), Error);
  EXPECT_THROW(linear(x, weight, make({4}), make({2, 5})), Error);
  EXPECT_THROW(linear(x, weight, make({5}, DType::f64), make({2, 5})), Error);
  EXPECT_THROW(linear(x, weight, make({5}), make({2, 5}, DType::f64)), Error);
  EXPECT_THROW(linear(x, weight, make({5}), make({2, 5}), {Activation::gelu_tanh, make({2, 4})}), Error);
  EXPECT_THROW(linear_add(x, weight, make({5}), make({2, 4}), make({2, 5})), Error);
  const Tensor y = make({2, 5});
  EXPECT_THROW(linear_add(x, weight, make({5}), y, y), Error);
  EXPECT_THROW(linear_backward(y, weight, make({2, 3}), {Activation::gelu_tanh, make({2, 4})}), Error);
  EXPECT_THROW(linear_backward(y, weight, make({2, 4}), {Activation::gelu_tanh, make({2, 3})}), Error);
  EXPECT_THROW(linear_backward(y, weight, x, {Activation::gelu_tanh, x}), Error);
  EXPECT_THROW(linear(x, weight, make({5}), make({2, 5}), {Activation::silu_gate, make({2, 5})}), Error);
  EXPECT_THROW(linear_backward(y, weight, make({2, 3}), {Activation::silu_gate, make({2, 6})}), Error);
  EXPECT_THROW(linear_backward(y, weight, make({2, 3}), {Activation::silu_gate, make({2, 3})}), Error);
  EXPECT_THROW(linear(make({2, 3}, DType::bf16), make({5, 3}, DType::bf16), make({5}, DType::bf16), make({2, 5}),
                      {Activation::gelu_tanh, make({2, 5})}),
               Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
