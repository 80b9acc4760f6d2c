#include "layers/optimizer/offloaded_state.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

// Blocks of all sizes at which tails were lost elsewhere.
const std::vector<std::int64_t> sizes = {1, 511, 512, 513, 4095, 4096, 4097, 0, 7919, 104729, 1 << 20, 3};

TEST(OffloadedState, KeepsEveryByteOverManyPasses) {
  const TemporaryDirectory directory;
  OffloadedState state(directory.path(), sizes);
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  for (int pass = 0; pass < 6; ++pass) {
    state.begin(order);
    for (const std::size_t unit : order) {
      const Tensor block = state.take(unit);
      EXPECT_EQ(static_cast<bool>(block), sizes[unit] > 0);
      if (!block) continue;
      ASSERT_EQ(block.size(), sizes[unit]);
      auto* const bytes = block.data<std::uint8_t>();
      for (std::int64_t i = 0; i < block.size(); ++i) {
        ASSERT_EQ(bytes[i], static_cast<std::uint8_t>(pass * (i + static_cast<std::int64_t>(unit)))) << "unit " << unit;
        bytes[i] = static_cast<std::uint8_t>((pass + 1) * (i + static_cast<std::int64_t>(unit)));
      }
      state.give_back(unit);
    }
    std::shuffle(order.begin(), order.end(), random);
  }
  std::int64_t blocks = 0;
  for (const std::int64_t size : sizes) blocks += ScratchFile::aligned(size);
  EXPECT_EQ(state.bytes(), blocks);
  EXPECT_EQ(state.traffic().read, 6 * blocks);
  EXPECT_EQ(state.traffic().written, 6 * blocks);
}

TEST(OffloadedState, CanBeReadAndWrittenOutOfTurn) {
  const TemporaryDirectory directory;
  OffloadedState state(directory.path(), {5, 100});
  const Tensor first = state.mapped(0), second = state.mapped(1);
  state.touch();
  second.set(99, 7);
  state.begin({1, 0});
  const Tensor block = state.take(1);
  EXPECT_EQ(block.at(99), 7);
  block.set(99, 8);
  state.give_back(1);
  state.take(0).set(4, 9);
  state.give_back(0);
  state.touch();
  EXPECT_EQ(second.at(99), 8);
  EXPECT_EQ(first.at(4), 9);
}

TEST(OffloadedState, RefusesAnotherOrder) {
  const TemporaryDirectory directory;
  OffloadedState state(directory.path(), {5, 5});
  state.begin({1, 0});
  EXPECT_NE(sentence_of([&] { state.take(0); }).find("order has another one"), std::string::npos);
}

}  // namespace
}  // namespace stretto
