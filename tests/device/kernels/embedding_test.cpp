#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr std::int64_t first = 10;  // this rank holds tokens 10 to 14
constexpr std::int64_t share = 5;
const std::vector<std::int32_t> tokens = {10, 3, 14, 12, 15, 12, 0, 12};

TEST(Embedding, TakesTheRowsOfThisRank) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 17, 64}) {
      const Tensor table = random_tensor({share, columns}, dtype);
      const Tensor y = random_tensor({static_cast<std::int64_t>(tokens.size()), columns}, dtype, 2);
      embedding_forward(Tensor::of(tokens), first, table, y);
      for (std::int64_t i = 0; i < y.size(); ++i) {
        const std::int64_t entry = tokens[static_cast<std::size_t>(i / columns)] - first;
        EXPECT_EQ(y.at(i), entry >= 0 && entry < share ? table.at(entry * columns + i % columns) : 0);
      }
    }
  }
}

TEST(Embedding, BackwardAddsEveryOccurrence) {
  for (const auto& [dtype, gradient_type] : gradient_types) {
    for (const std::int64_t columns : {1, 17, 64}) {
      const Tensor dy = integer_tensor({static_cast<std::int64_t>(tokens.size()), columns}, dtype);
      const Tensor dtable = integer_tensor({share, columns}, gradient_type, 2);
      std::vector<double> expected = values(dtable);
      for (std::int64_t i = 0; i < dy.size(); ++i) {
        const std::int64_t entry = tokens[static_cast<std::size_t>(i / columns)] - first;
        if (entry >= 0 && entry < share) expected[static_cast<std::size_t>(entry * columns + i % columns)] += dy.at(i);
      }
      embedding_backward(Tensor::of(tokens), first, dy, dtable);
      EXPECT_EQ(values(dtable), expected);
    }
  }
}

// A few tokens are frequent and most are rare: many rows are added to the same entry, and many to an entry of their own. An
// entry in 16 bits is rounded once, however many rows it gets.
TEST(Embedding, BackwardAddsManyRows) {
  constexpr std::int64_t entries = 70'000;  // more than 16 bits can count
  for (const std::int64_t count : {31, 33, 1025, 5000}) {
    for (const std::int64_t columns : {3, 8}) {
      std::vector<std::int32_t> many;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t token = i % 3 == 0 ? 69'990 : i % 7 == 0 ? 17 : i * 7919 % 80'000;
        many.push_back(static_cast<std::int32_t>(first + token));
      }
      const Tensor dy = integer_tensor({count, columns}, DType::bf16);
      const Tensor dtable = Tensor::zeros({entries, columns}, DType::f32);
      const Tensor narrow = Tensor::zeros({entries, columns}, DType::bf16);
      std::vector<double> expected = values(dtable);
      for (std::int64_t i = 0; i < dy.size(); ++i) {
        const std::int64_t entry = many[static_cast<std::size_t>(i / columns)] - first;
        if (entry < entries) expected[static_cast<std::size_t>(entry * columns + i % columns)] += dy.at(i);
      }
      embedding_backward(Tensor::of(many), first, dy, dtable);
      EXPECT_EQ(values(dtable), expected) << count << " x " << columns;
      embedding_backward(Tensor::of(many), first, dy, narrow);
      EXPECT_EQ(values(narrow), values(tensor_of(expected, DType::bf16))) << count << " x " << columns;
    }
  }
}

TEST(Embedding, SumsAreTheSameBitsAtEachCall) {
  std::vector<std::int32_t> many(3000);
  for (int i = 0; i < 3000; ++i) many[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(first + i * i % share);
  const Tensor dy = random_tensor({3000, 40}, DType::f32);
  std::vector<double> before;
  for (int call = 0; call < 3; ++call) {
    const Tensor dtable = Tensor::zeros({share, 40}, DType::f32);
    embedding_backward(Tensor::of(many), first, dy, dtable);
    if (call > 0) {
      EXPECT_EQ(values(dtable), before);
    }
    before = values(dtable);
  }
}

TEST(Embedding, ArgumentsMustFit) {
  const Tensor table({share, 4}, DType::bf16);
  EXPECT_THROW(embedding_forward(Tensor::of(tokens), first, table, Tensor({8, 5}, DType::bf16)), Error);
  EXPECT_THROW(embedding_forward(Tensor::of(tokens), first, table, Tensor({8, 4}, DType::f32)), Error);
  EXPECT_THROW(embedding_backward(Tensor::of(tokens), first, Tensor({8, 4}, DType::f16), table), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
