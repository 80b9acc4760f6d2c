#include <gmock/gmock.h>

#include "core/draws.hpp"
#include "core/split_mix.hpp"
#include "device/kernels/kernel_data.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

Tensor draws_of(std::int64_t rows, std::uint64_t seed = 1) {
  std::vector<std::int64_t> draws;
  for (std::int64_t row = 0; row < rows; ++row) {
    draws.push_back(static_cast<std::int64_t>(split_mixed(seed + static_cast<std::uint64_t>(row) * split_mix_step)));
  }
  return Tensor::of(draws);
}

std::vector<double> dropped(const Dropout& options, const Tensor& x, const Tensor& draws) {
  const Tensor out(x.shape(), x.dtype());
  dropout(options, x, draws, out);
  return values(out);
}

// By the formula: a hash of the row's draw and the number, and the column, decides.
std::vector<double> expected(const Dropout& options, const Tensor& x, const Tensor& draws) {
  std::vector<double> result = values(x);
  const auto bound = static_cast<std::uint32_t>(options.probability * 0x1p32);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t row = i / x.columns(), column = i % x.columns() + options.first_column;
    const DrawKey key(static_cast<std::uint64_t>(draws.data<std::int64_t>()[row]) + options.number, 0);
    const bool keeps = draw(key, static_cast<std::uint32_t>(column)) >= bound;
    result[static_cast<std::size_t>(i)] *= keeps ? 1 / (1 - options.probability) : 0;
  }
  return result;
}

void expect_formula(DType dtype, std::int64_t columns, const Dropout& options) {
  SCOPED_TRACE(testing::Message() << columns << " columns of " << name(dtype));
  const Tensor x = random_tensor({3, columns}, dtype, 5), draws = draws_of(3), in_place = x.clone();
  const Tensor out(x.shape(), dtype);
  dropout(options, x, draws, out);
  expect_close(out, expected(options, x, draws));
  dropout(options, in_place, draws, in_place);
  EXPECT_EQ(values(in_place), values(out));
}

TEST(Dropout, DropsByTheFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 3, 17, 64, 75, 1000}) {
      for (const std::int64_t first : {0, 5}) {
        expect_formula(dtype, columns, {.probability = 0.3, .number = 7, .first_column = first});
      }
    }
  }
}

TEST(Dropout, IsTheSameWithEveryInstructionSet) {
  on_each_instruction_set([&] {
    for (const DType dtype : compute_types) expect_formula(dtype, 77, {.probability = 0.7});
  });
}

TEST(Dropout, OfAPartIsThatOfTheWhole) {
  const Tensor x = random_tensor({6, 40}, DType::f32, 1), draws = draws_of(6);
  const Dropout whole{.probability = 0.4};
  const std::vector<double> all = dropped(whole, x, draws);
  const auto part = [&](const Dropout& options, std::int64_t row, std::int64_t column) {
    const Tensor its({2, 13}, DType::f32);
    for (std::int64_t i = 0; i < its.size(); ++i) its.set(i, x.at((row + i / 13) * 40 + column + i % 13));
    return dropped(options, its, draws.view(row, {2}));
  };
  std::vector<double> of_all;
  for (std::int64_t i = 0; i < 26; ++i) of_all.push_back(all[static_cast<std::size_t>((3 + i / 13) * 40 + 9 + i % 13)]);
  EXPECT_EQ(part({.probability = 0.4, .first_column = 9}, 3, 9), of_all);
  EXPECT_NE(part(whole, 3, 9), of_all) << "the control, without the first column";
  EXPECT_NE(part({.probability = 0.4, .number = 1, .first_column = 9}, 3, 9), of_all) << "the control, of another number";
}

// Over many draws: 1 - p of the elements, of which each has the expectation of the input; neighbours in rows and columns,
// and matrices of other numbers, are dropped independently.
TEST(Dropout, HasTheInputsExpectation) {
  constexpr std::int64_t rows = 400, columns = 256;
  const Tensor ones({rows, columns}, DType::f32);
  for (std::int64_t i = 0; i < ones.size(); ++i) ones.set(i, 1);
  for (const double probability : {0.0, 0.1, 0.5, 0.9}) {
    const auto of = [&](std::uint64_t number, std::uint64_t seed) {
      return dropped({.probability = probability, .number = number}, ones, draws_of(rows, seed));
    };
    const std::vector<double> first = of(0, 1), other = of(1, 1), again = of(0, 2);
    const double count = rows * columns;
    const double deviation = std::sqrt(probability / (1 - probability) / count);  // of the mean
    double sum = 0, with_other = 0, with_again = 0, with_column = 0, with_row = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double centred = first[i] - 1;
      sum += first[i];
      with_other += centred * (other[i] - 1);
      with_again += centred * (again[i] - 1);
      with_column += centred * (first[(i + 1) % first.size()] - 1);
      with_row += centred * (first[(i + columns) % first.size()] - 1);
    }
    EXPECT_NEAR(sum / count, 1, 5 * deviation + 1e-12);
    const double variance = probability / (1 - probability);
    for (const double covariance : {with_other, with_again, with_column, with_row}) {
      EXPECT_NEAR(covariance / count, 0, 5 * variance / std::sqrt(count) + 1e-12);
    }
    if (probability > 0) {
      EXPECT_NE(first, other);
      EXPECT_NE(first, again);
    }
  }
}

TEST(Dropout, ArgumentsMustFit) {
  const Tensor x = random_tensor({2, 4}, DType::f32, 1), draws = draws_of(2);
  EXPECT_THAT(sentence_of([&] { dropout({.probability = 1}, x, draws, x); }), testing::HasSubstr("a probability of 1;"));
  EXPECT_THROW(dropout({.probability = -0.1}, x, draws, x), Error);
  EXPECT_THROW(dropout({.probability = 0.1}, x, draws_of(3), x), Error);
  EXPECT_THROW(dropout({.probability = 0.1}, x, Tensor::of(std::vector<std::int32_t>{1, 2}), x), Error);
  EXPECT_THROW(dropout({.probability = 0.1}, x, draws, random_tensor({2, 3}, DType::f32, 1)), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
