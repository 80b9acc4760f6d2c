#include <gtest/gtest.h>

#include <limits>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr std::int64_t rows = 6;
constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<std::int32_t> targets_among(std::int64_t columns) {
  std::vector<std::int32_t> result;
  for (std::int64_t row = 0; row < rows; ++row) result.push_back(static_cast<std::int32_t>(row * 31 % columns));
  result.back() = static_cast<std::int32_t>(columns - 1);
  return result;
}

// Combines the shares of a vocabulary as training does, with all shares in one process.
struct Loss {
  std::vector<double> losses;
  std::vector<Tensor> gradients;  // one for each share
};

Tensor columns_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  Tensor result({x.rows(), count}, x.dtype());
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, x.at(i / count * x.columns() + first + i % count));
  return result;
}

Loss loss_of_shares(const Tensor& logits, const std::vector<std::int32_t>& targets, const std::vector<std::int64_t>& shares,
                    double factor) {
  const DType wide = accumulator(logits.dtype());
  struct OfShare {
    std::int64_t first;
    Tensor max, sum_exp, target_logit;
  };
  Loss result;
  std::vector<OfShare> all;
  const Tensor max({rows}, wide);
  for (std::int64_t row = 0; row < rows; ++row) max.set(row, -infinity);
  std::int64_t first = 0;
  for (const std::int64_t count : shares) {
    result.gradients.push_back(columns_of(logits, first, count));
    const OfShare share{first, Tensor({rows}, wide), Tensor({rows}, wide), Tensor({rows}, wide)};
    cross_entropy_forward(result.gradients.back(), Tensor::of(targets), first, share.max, share.sum_exp, share.target_logit);
    reduce(ReduceOp::max, wide, max.raw(), share.max.raw(), max.raw(), rows);
    all.push_back(share);
    first += count;
  }
  const Tensor sum_exp = Tensor::zeros({rows}, wide);
  const Tensor target_logit = Tensor::zeros({rows}, wide);
  for (const OfShare& share : all) {
    if (shares.size() > 1) cross_entropy_rebase(share.max, max, share.sum_exp);
    add(sum_exp, share.sum_exp, sum_exp);
    add(target_logit, share.target_logit, target_logit);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    cross_entropy_backward(result.gradients[i], Tensor::of(targets), all[i].first, max, sum_exp, factor);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    result.losses.push_back(std::log(sum_exp.at(row)) + max.at(row) - target_logit.at(row));
  }
  return result;
}

std::vector<double> probabilities(const Tensor& x) {
  std::vector<double> result = values(x);
  const auto columns = static_cast<std::size_t>(x.columns());
  for (std::size_t row = 0; row < static_cast<std::size_t>(x.rows()); ++row) {
    double* const p = result.data() + row * columns;
    const double max = *std::max_element(p, p + columns);
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += p[c] = std::exp(p[c] - max);
    for (std::size_t c = 0; c < columns; ++c) p[c] /= sum;
  }
  return result;
}

TEST(CrossEntropy, EqualsItsFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 3, 7, 16, 17, 63, 65, 1000, 20001}) {
      const Tensor logits = random_tensor({rows, columns}, dtype, 1, 4);
      const std::vector<std::int32_t> targets = targets_among(columns);
      const Loss loss = loss_of_shares(logits, targets, {columns}, 0.25);
      std::vector<double> expected = probabilities(logits);
      for (std::int64_t row = 0; row < rows; ++row) {
        double& target = expected[static_cast<std::size_t>(row * columns + targets[static_cast<std::size_t>(row)])];
        EXPECT_NEAR(loss.losses[static_cast<std::size_t>(row)], -std::log(target), 32 * tolerance(accumulator(dtype)));
        target -= 1;
      }
      for (double& value : expected) value *= 0.25;
      expect_close(loss.gradients[0], expected, 0.01, 4);
    }
  }
}

TEST(CrossEntropy, ThreeSharesOfTheVocabularyEqualTheWhole) {
  for (const DType dtype : compute_types) {
    const std::int64_t columns = 100;
    const Tensor logits = random_tensor({rows, columns}, dtype, 2, 3);
    const std::vector<std::int32_t> targets = targets_among(columns);
    const Loss whole = loss_of_shares(logits, targets, {columns}, 1);
    const std::vector<std::int64_t> shares = {34, 33, 33};
    const Loss split = loss_of_shares(logits, targets, shares, 1);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      expect_close(split.gradients[i], values(columns_of(whole.gradients[0], first, shares[i])), 1e-3, 4);
      first += shares[i];
    }
    for (std::size_t row = 0; row < rows; ++row) {
      EXPECT_NEAR(split.losses[row], whole.losses[row], 32 * tolerance(accumulator(dtype)));
    }
  }
}

TEST(CrossEntropy, AShareMayHaveNoColumns) {
  const Tensor logits = random_tensor({rows, 20}, DType::f32);
  const std::vector<std::int32_t> targets = targets_among(20);
  const Loss whole = loss_of_shares(logits, targets, {20}, 1);
  const Loss split = loss_of_shares(logits, targets, {20, 0}, 1);
  EXPECT_EQ(split.losses, whole.losses);
  EXPECT_EQ(values(split.gradients[0]), values(whole.gradients[0]));
}

// Not even infinities and what is no number reach the loss of a row that does not count.
TEST(CrossEntropy, LeavesRowsOut) {
  for (const DType dtype : compute_types) {
    const std::int64_t columns = 100;
    const Tensor logits = random_tensor({rows, columns}, dtype, 2, 3);
    std::vector<std::int32_t> targets = targets_among(columns);
    const Loss all = loss_of_shares(logits, targets, {columns}, 1);
    targets[1] = -1;
    targets[4] = -100;
    for (std::int64_t c = 0; c < columns; ++c) {
      logits.set(columns + c, std::numeric_limits<double>::quiet_NaN());
      logits.set(4 * columns + c, infinity);
    }
    for (const std::vector<std::int64_t>& shares : {std::vector<std::int64_t>{columns}, {34, 0, 66}}) {
      const Loss some = loss_of_shares(logits, targets, shares, 1);
      std::int64_t first = 0;
      for (const Tensor& gradients : some.gradients) {
        std::vector<double> expected = values(columns_of(all.gradients[0], first, gradients.columns()));
        for (const std::int64_t row : {1, 4})
          std::fill_n(expected.begin() + row * gradients.columns(), gradients.columns(), 0);
        expect_close(gradients, expected, 1e-3, 4);
        first += gradients.columns();
      }
      for (const std::size_t row : {0U, 2U, 3U, 5U}) {
        EXPECT_NEAR(some.losses[row], all.losses[row], 32 * tolerance(accumulator(dtype)));
      }
    }
  }
}

TEST(CrossEntropy, GradientIsTheSlope) {
  const std::int64_t columns = 19;
  const Tensor logits = random_tensor({rows, columns}, DType::f64);
  const std::vector<std::int32_t> targets = targets_among(columns);
  const Loss loss = loss_of_shares(logits, targets, {columns}, 1);
  const double h = 1e-6;
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    const Tensor high = logits.clone();
    const Tensor low = logits.clone();
    high.set(i, logits.at(i) + h);
    low.set(i, logits.at(i) - h);
    const auto row = static_cast<std::size_t>(i / columns);
    const double slope =
        (loss_of_shares(high, targets, {columns}, 1).losses[row] - loss_of_shares(low, targets, {columns}, 1).losses[row]) /
        (2 * h);
    EXPECT_NEAR(loss.gradients[0].at(i), slope, 1e-8);
  }
}

TEST(CrossEntropy, FindsTheLargestAndKeepsNan) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 7, 65, 1000}) {
      const Tensor x = random_tensor({rows, columns}, dtype);
      for (std::int64_t c = 0; c < columns; ++c) x.set(c, -infinity);
      const DType wide = accumulator(dtype);
      const Tensor max({rows}, wide);
      const Tensor sum_exp({rows}, wide);
      x.set(columns + columns / 2, std::numeric_limits<double>::quiet_NaN());
      x.set(3 * columns - 1, infinity);
      cross_entropy_forward(x, Tensor::of(targets_among(columns)), 0, max, sum_exp, Tensor({rows}, wide));
      EXPECT_EQ(max.at(0), -infinity);
      EXPECT_TRUE(std::isnan(max.at(1)) && std::isnan(sum_exp.at(1)));
      EXPECT_EQ(max.at(2), infinity);
      const std::vector<double> row = values(x.view(3 * columns, {columns}));
      EXPECT_EQ(max.at(3), *std::max_element(row.begin(), row.end()));
    }
  }
}

// Logits that fall or rise along the row, shares with all logits but the last masked, and logits of which few contribute.
TEST(CrossEntropy, IsExactWhereverTheLargestLogitStands) {
  for (const DType dtype : compute_types) {
    constexpr std::int64_t columns = 3000;
    const Tensor logits({rows, columns}, dtype);
    for (std::int64_t i = 0; i < logits.size(); ++i) {
      const std::int64_t c = i % columns;
      const double by_row[rows] = {static_cast<double>(c), -static_cast<double>(c), -infinity, -1000, 1000,
                                   c % 2 ? -90.0 : 0.0};
      logits.set(i, by_row[i / columns]);
    }
    logits.set(3 * columns - 1, -5000);
    const std::vector<std::int32_t> targets(rows, columns - 1);
    const std::vector<double> expected = probabilities(logits);
    for (const std::vector<std::int64_t>& shares : {std::vector<std::int64_t>{columns}, {1, 1999, 0, 1000}}) {
      const Loss loss = loss_of_shares(logits, targets, shares, 1);
      std::int64_t first = 0;
      for (const Tensor& gradients : loss.gradients) {
        for (std::int64_t i = 0; i < gradients.size(); ++i) {
          const std::int64_t row = i / gradients.columns();
          const std::int64_t c = first + i % gradients.columns();
          const double target = c == columns - 1 ? 1 : 0;
          EXPECT_NEAR(gradients.at(i), expected[static_cast<std::size_t>(row * columns + c)] - target, 4e-3)
              << name(dtype) << " row " << row << " column " << c;
        }
        first += gradients.columns();
      }
    }
  }
}

TEST(Softmax, EqualsItsFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 3, 7, 16, 17, 63, 65, 1000, 5001}) {
      const Tensor x = random_tensor({rows, columns}, dtype, 1, 4);
      const std::vector<double> expected = probabilities(x);
      const Tensor y(x.shape(), dtype);
      softmax(x, y);
      expect_close(y, expected, 0, 4);
      softmax(x, x);
      EXPECT_EQ(values(x), values(y));
    }
  }
}

TEST(Softmax, MaskedColumnsAreZeroAndHugeOnesDoNotOverflow) {
  const Tensor x = tensor_of({1e38, 1e38, -infinity, -1e38}, DType::f32);
  softmax(x, x);
  EXPECT_EQ(values(x), (std::vector<double>{0.5, 0.5, 0, 0}));
}

TEST(CrossEntropy, ArgumentsMustFit) {
  const Tensor targets = Tensor::zeros({rows}, DType::i32);
  const Tensor logits({rows, 8}, DType::bf16);
  const Tensor wide({rows}, DType::f32);
  const Tensor narrow({rows}, DType::bf16);
  const Tensor few({rows - 1}, DType::f32);
  EXPECT_THROW(cross_entropy_forward(logits, targets, 0, narrow, wide, wide), Error);
  EXPECT_THROW(cross_entropy_forward(logits, targets, 0, few, wide, wide), Error);
  EXPECT_THROW(cross_entropy_rebase(narrow, narrow, narrow), Error);
  EXPECT_THROW(cross_entropy_rebase(wide, few, wide), Error);
  EXPECT_THROW(cross_entropy_forward(logits, targets, 0, wide, few, wide), Error);
  EXPECT_THROW(cross_entropy_backward(logits, targets, 0, wide, narrow, 1), Error);
  EXPECT_THROW(softmax(logits, Tensor({8, rows}, DType::bf16)), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
