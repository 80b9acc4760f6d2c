#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr std::int64_t rows = 21;
constexpr double epsilon = 1e-5;

// One layer norm with all its tensors, each of the type that the kernels take.
struct LayerNorm {
  explicit LayerNorm(std::int64_t columns, DType dtype, double offset = 0)
      : x(random_tensor({rows, columns}, dtype, 1, 2)),
        gamma(random_tensor({columns}, dtype, 2)),
        beta(random_tensor({columns}, dtype, 3)),
        dy(random_tensor({rows, columns}, dtype, 4)),
        y(Shape{rows, columns}, dtype),
        mean(Shape{rows}, accumulator(dtype)),
        rstd(Shape{rows}, accumulator(dtype)) {
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) + offset);
  }
  void forward() const { layer_norm_forward(x, gamma, beta, epsilon, y, mean, rstd); }

  Tensor x, gamma, beta, dy, y, mean, rstd;
};

struct Reference {
  std::vector<double> y, mean, rstd, dx, dgamma, dbeta;
};

Reference reference(const LayerNorm& norm) {
  const std::int64_t columns = norm.x.columns();
  const auto n = static_cast<double>(columns);
  Reference result;
  result.dgamma.resize(static_cast<std::size_t>(columns));
  result.dbeta.resize(static_cast<std::size_t>(columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto x = [&](std::int64_t c) { return norm.x.at(row * columns + c); };
    const auto dy = [&](std::int64_t c) { return norm.dy.at(row * columns + c); };
    double mean = 0;
    double variance = 0;
    for (std::int64_t c = 0; c < columns; ++c) mean += x(c) / n;
    for (std::int64_t c = 0; c < columns; ++c) variance += (x(c) - mean) * (x(c) - mean) / n;
    const double rstd = 1 / std::sqrt(variance + epsilon);
    double mean_g = 0;
    double mean_g_normal = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double normal = (x(c) - mean) * rstd;
      result.y.push_back(normal * norm.gamma.at(c) + norm.beta.at(c));
      result.dgamma[static_cast<std::size_t>(c)] += dy(c) * normal;
      result.dbeta[static_cast<std::size_t>(c)] += dy(c);
      mean_g += dy(c) * norm.gamma.at(c) / n;
      mean_g_normal += dy(c) * norm.gamma.at(c) * normal / n;
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      const double normal = (x(c) - mean) * rstd;
      result.dx.push_back(rstd * (dy(c) * norm.gamma.at(c) - mean_g - normal * mean_g_normal));
    }
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
  }
  return result;
}

TEST(LayerNorm, ForwardEqualsItsFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 3, 7, 16, 17, 63, 65, 1000, 4999, 9000}) {
      const LayerNorm norm(columns, dtype);
      norm.forward();
      const Reference expected = reference(norm);
      // With a single column the variance is 0: rstd is large, and multiplies the rounding error of x - mean.
      expect_close(norm.mean, expected.mean, 1, 4);
      expect_close(norm.rstd, expected.rstd, 0, 16);
      expect_close(norm.y, expected.y, 1, 16);
    }
  }
}

TEST(LayerNorm, KeepsItsDigitsFarFromZero) {
  const LayerNorm norm(768, DType::f32, 1000);
  norm.forward();
  expect_close(norm.rstd, reference(norm).rstd, 0, 16);
}

TEST(LayerNorm, BackwardAddsTheGradients) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {3, 7, 16, 17, 63, 65, 768, 1000, 1501, 1701, 9000}) {
      if (few_cases() && dtype == DType::f16 && columns > 1000) continue;  // takes the packs of bf16
      const LayerNorm norm(columns, dtype);
      norm.forward();
      Reference expected = reference(norm);
      const Tensor dx = random_tensor({rows, columns}, dtype, 5);
      const Tensor dgamma = random_tensor({columns}, accumulator(dtype), 6);
      const Tensor dbeta = random_tensor({columns}, accumulator(dtype), 7);
      for (std::int64_t i = 0; i < dx.size(); ++i) expected.dx[static_cast<std::size_t>(i)] += dx.at(i);
      for (std::int64_t c = 0; c < columns; ++c) {
        expected.dgamma[static_cast<std::size_t>(c)] += dgamma.at(c);
        expected.dbeta[static_cast<std::size_t>(c)] += dbeta.at(c);
      }
      layer_norm_backward(norm.x, norm.gamma, norm.mean, norm.rstd, norm.dy, dx, dgamma, dbeta);
      expect_close(dx, expected.dx, 1, 16);
      expect_close(dgamma, expected.dgamma, 1, 16);
      expect_close(dbeta, expected.dbeta, 1, 16);
    }
  }
}

TEST(LayerNorm, GradientsIn16BitsAreRoundedOnce) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t columns : {7, 768}) {
      const LayerNorm norm(columns, dtype);
      norm.forward();
      const auto backward = [&](DType gradient_type) {
        const Tensor dgamma({columns}, gradient_type);
        const Tensor dbeta({columns}, gradient_type);
        convert(random_tensor({columns}, dtype, 6), dgamma);
        convert(random_tensor({columns}, dtype, 7), dbeta);
        const Tensor dx = Tensor::zeros({rows, columns}, dtype);
        layer_norm_backward(norm.x, norm.gamma, norm.mean, norm.rstd, norm.dy, dx, dgamma, dbeta);
        return std::pair(dgamma, dbeta);
      };
      const auto [dgamma, dbeta] = backward(DType::f32);
      const auto [narrow_dgamma, narrow_dbeta] = backward(dtype);
      EXPECT_EQ(values(narrow_dgamma), values(tensor_of(values(dgamma), dtype)));
      EXPECT_EQ(values(narrow_dbeta), values(tensor_of(values(dbeta), dtype)));
    }
  }
}

TEST(LayerNorm, BackwardIsTheSlope) {
  const std::int64_t columns = 33;
  const LayerNorm norm(columns, DType::f64);
  norm.forward();
  const Tensor dx = Tensor::zeros({rows, columns}, DType::f64);
  const Tensor dgamma = Tensor::zeros({columns}, DType::f64);
  const Tensor dbeta = Tensor::zeros({columns}, DType::f64);
  layer_norm_backward(norm.x, norm.gamma, norm.mean, norm.rstd, norm.dy, dx, dgamma, dbeta);
  const auto loss = [&] {
    norm.forward();
    double sum = 0;
    for (std::int64_t i = 0; i < norm.y.size(); ++i) sum += norm.y.at(i) * norm.dy.at(i);
    return sum;
  };
  const auto slope = [&](const Tensor& tensor, std::int64_t i) {
    const double h = 1e-6;
    const double value = tensor.at(i);
    tensor.set(i, value + h);
    const double high = loss();
    tensor.set(i, value - h);
    const double low = loss();
    tensor.set(i, value);
    return (high - low) / (2 * h);
  };
  for (std::int64_t i = 0; i < norm.x.size(); ++i) EXPECT_NEAR(dx.at(i), slope(norm.x, i), 1e-7);
  for (std::int64_t c = 0; c < columns; ++c) {
    EXPECT_NEAR(dgamma.at(c), slope(norm.gamma, c), 1e-7);
    EXPECT_NEAR(dbeta.at(c), slope(norm.beta, c), 1e-7);
  }
}

TEST(LayerNorm, NoRowsAreNoWork) {
  const Tensor none({0, 16}, DType::f32);
  const Tensor row = random_tensor({16}, DType::f32);
  const Tensor statistics({0}, DType::f32);
  EXPECT_NO_THROW(layer_norm_forward(none, row, row, epsilon, none, statistics, statistics));
}

TEST(LayerNorm, ArgumentsMustFit) {
  const LayerNorm norm(16, DType::bf16);
  const Tensor wide({17}, DType::bf16);
  const Tensor narrow_mean({rows}, DType::bf16);
  const Tensor sums = Tensor::zeros({16}, DType::f32);
  EXPECT_THROW(layer_norm_forward(norm.x, wide, norm.beta, epsilon, norm.y, norm.mean, norm.rstd), Error);
  EXPECT_THROW(layer_norm_forward(norm.x, norm.gamma, norm.beta, epsilon, norm.y, narrow_mean, norm.rstd), Error);
  const Tensor half({16}, DType::f16);
  EXPECT_THROW(layer_norm_backward(norm.x, norm.gamma, norm.mean, norm.rstd, norm.dy, norm.y, half, sums), Error);
  EXPECT_THROW(layer_norm_backward(norm.x, norm.gamma, norm.mean, norm.rstd, norm.dy, norm.y, sums, half), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
