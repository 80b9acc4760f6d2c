#include "stretto/layers/rotary.hpp"

#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr std::int64_t turned_tokens = 6, turned_heads = 4;

Tensor positions_of_tokens() { return Tensor::of(std::vector<std::int32_t>{0, 1, 7, 3, 29, 2}); }
Tensor table_of(std::int64_t size, DType dtype) { return rotary_table(rotary_frequencies(1e4, size), 30, dtype); }

// The heads of queries among keys and values, in two parts.
TokenHeads packed(std::int64_t size, DType dtype, unsigned seed, std::int64_t margin = 0) {
  const std::int64_t step = turned_heads / 2 * size + margin;
  return {random_tensor({turned_tokens, margin + 3 * step}, dtype, seed), margin, 2, step};
}

std::vector<double> turned(const TokenHeads& x, std::int64_t size, double direction) {
  std::vector<double> result = values(x.tensor);
  const Tensor positions = positions_of_tokens();
  const std::vector<float> frequency = rotary_frequencies(1e4, size).frequency;
  for (std::int64_t token = 0; token < turned_tokens; ++token) {
    for (std::int64_t head = 0; head < turned_heads; ++head) {
      for (std::int64_t i = 0; i < size / 2; ++i) {
        const std::int64_t first = token * x.tensor.columns() + x.column(head, size) + i;
        const float angle = static_cast<float>(positions.at(token)) * frequency[static_cast<std::size_t>(i)];
        const double cosine = static_cast<float>(std::cos(double{angle}));
        const double sine = direction * static_cast<float>(std::sin(double{angle}));
        const double a = x.tensor.at(first), b = x.tensor.at(first + size / 2);
        result[static_cast<std::size_t>(first)] = a * cosine - b * sine;
        result[static_cast<std::size_t>(first + size / 2)] = b * cosine + a * sine;
      }
    }
  }
  return result;
}

void expect_rotary_formula(DType dtype, std::int64_t size, std::int64_t margin) {
  SCOPED_TRACE(testing::Message() << "heads of " << size << " " << name(dtype) << ", " << margin << " columns between");
  const TokenHeads x = packed(size, dtype, 1, margin);
  const std::vector<double> forth = turned(x, size, 1), back = turned(x, size, -1);
  const Tensor table = table_of(size, dtype);
  for (const bool inverse : {false, true}) {
    TokenHeads in_place = x, out = x;
    in_place.tensor = x.tensor.clone();
    rotary(in_place, turned_heads, positions_of_tokens(), table, in_place, inverse);
    expect_close(in_place.tensor, inverse ? back : forth, 1);
    out.tensor = x.tensor.clone();
    rotary(x, turned_heads, positions_of_tokens(), table, out, inverse);
    EXPECT_EQ(values(out.tensor), values(in_place.tensor));
  }
  double largest = 0;
  for (std::size_t i = 0; i < forth.size(); ++i) largest = std::max(largest, std::abs(forth[i] - back[i]));
  EXPECT_GT(largest, 0.1) << "the control";
}

TEST(Rotary, EqualsItsFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t size : {2, 10, 32, 64, 80, 128}) {
      for (const std::int64_t margin : {0, 3, 8}) expect_rotary_formula(dtype, size, margin);
    }
  }
}

TEST(Rotary, IsAccurateWithEveryInstructionSet) {
  on_each_instruction_set([&] {
    for (const DType dtype : compute_types) expect_rotary_formula(dtype, 74, 1);
  });
}

TEST(Rotary, BackwardIsItsTranspose) {
  const std::int64_t size = 16;
  const TokenHeads x = packed(size, DType::f64, 1), dy = packed(size, DType::f64, 2);
  const auto product = [](const Tensor& a, const Tensor& b) {
    double sum = 0;
    for (std::int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
    return sum;
  };
  const auto of = [&](const TokenHeads& from, bool inverse) {
    TokenHeads out = from;
    out.tensor = from.tensor.clone();
    rotary(from, turned_heads, positions_of_tokens(), table_of(size, DType::f64), out, inverse);
    return out.tensor;
  };
  EXPECT_NEAR(product(of(x, false), dy.tensor), product(x.tensor, of(dy, true)), 1e-12);
  EXPECT_GT(std::abs(product(of(x, false), dy.tensor) - product(x.tensor, of(dy, false))), 1e-3) << "the control";
}

// Scores of queries and keys see the differences of their positions alone.
TEST(Rotary, ScoresDoNotChangeWhenAllPositionsShift) {
  const std::int64_t size = 64, shift = 1000;
  const Tensor table = rotary_table(rotary_frequencies(1e4, size), shift + 64, DType::f32);
  const auto score = [&](std::int32_t query, std::int32_t key) {
    const Tensor rows = random_tensor({2, size}, DType::f32, 3);
    rotary({rows}, 1, Tensor::of(std::vector{query, key}), table, {rows});
    double sum = 0;
    for (std::int64_t c = 0; c < size; ++c) sum += rows.at(c) * rows.at(size + c);
    return sum;
  };
  EXPECT_NEAR(score(40, 13), score(40 + shift, 13 + shift), 1e-3);
  EXPECT_GT(std::abs(score(40, 13) - score(41, 13)), 1e-2) << "the control";
}

TEST(Rotary, ArgumentsMustFit) {
  const TokenHeads x = packed(8, DType::bf16, 1);
  const Tensor positions = positions_of_tokens(), table = table_of(8, DType::bf16);
  EXPECT_NO_THROW(rotary(x, turned_heads, positions, table, x));
  EXPECT_THROW(rotary(x, 3, positions, table, x), Error);
  EXPECT_THROW(rotary(x, turned_heads, positions, table_of(16, DType::bf16), x), Error);
  EXPECT_THROW(rotary(x, turned_heads, positions, table_of(8, DType::f64), x), Error);
  EXPECT_THROW(rotary(x, turned_heads, positions, table.reshaped({60, 4}), x), Error);
  EXPECT_THROW(rotary(x, turned_heads, positions.view(0, {5}), table, x), Error);
  HOST_ONLY("a GPU does not look at positions before it reads the table");
  EXPECT_EQ(sentence_of([&] {
              rotary(x, turned_heads, positions, table.view(0, {29, 2, 4}), x);
            }),
            "rotary was given position 29, of which its table of 29 positions has no row.");
}

}  // namespace
}  // namespace stretto::kernels::tested
