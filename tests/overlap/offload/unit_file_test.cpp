#include "overlap/offload/unit_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

// Blocks of all sizes at which tails were lost elsewhere.
const std::vector<std::int64_t> block_sizes = {1, 511, 512, 513, 4095, 4096, 4097, 0, 7919, 104729, 1 << 20, 3};

TEST(UnitFile, KeepsEveryByteOverManyPasses) {
  const TemporaryDirectory directory;
  UnitFile state(directory.path(), block_sizes);
  std::vector<std::size_t> order(block_sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  for (int pass = 0; pass < 6; ++pass) {
    state.begin(order);
    for (const std::size_t unit : order) {
      const Tensor block = state.take(unit);
      EXPECT_EQ(static_cast<bool>(block), block_sizes[unit] > 0);
      if (!block) continue;
      ASSERT_EQ(block.size(), block_sizes[unit]);
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
  for (const std::int64_t size : block_sizes) blocks += ScratchFile::aligned(size);
  EXPECT_EQ(state.bytes(), blocks);
  EXPECT_EQ(state.traffic().read, 6 * blocks);
  EXPECT_EQ(state.traffic().written, 6 * blocks);
}

// What a loop has written to other places counts when it is accepted, and not before.
TEST(UnitFile, KeepsBlocksUntilOthersAreAccepted) {
  const TemporaryDirectory directory;
  const std::vector<std::size_t> order = {0, 2, 3};
  UnitFile state(directory.path(), {5, 0, 5000, 1}, {.two_places = true});
  const auto add = [&](UnitFile::Place place, double more) {
    state.begin(order, place);
    std::vector<double> before;
    for (const std::size_t unit : order) {
      const Tensor block = state.take(unit);
      before.push_back(block.at(0));
      block.set(0, block.at(0) + more);
      state.give_back(unit);
    }
    return before;
  };
  EXPECT_EQ(add(UnitFile::Place::other, 1), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(add(UnitFile::Place::other, 2), (std::vector<double>{0, 0, 0})) << "the first were taken back";
  EXPECT_EQ(state.accept(), order);
  EXPECT_EQ(state.accept(), std::vector<std::size_t>()) << "once";
  state.touch();
  EXPECT_EQ(state.mapped(2).at(0), 2);
  EXPECT_EQ(add(UnitFile::Place::same, 4), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(add(UnitFile::Place::other, 8), (std::vector<double>{6, 6, 6}));
  EXPECT_EQ(add(UnitFile::Place::same, 0), (std::vector<double>{6, 6, 6}));
  EXPECT_EQ(state.bytes(), 2 * (4096 + 8192 + 4096));
  UnitFile single(directory.path(), {5});
  expect_refusal([&] { single.begin({0}, UnitFile::Place::other); }, "have one place each");
}

// As an update in a thread of its own does with the gradients of the step before, while those of this step are written and
// read again.
TEST(UnitFile, ReadsOtherPlacesBesideMovesOfBlocks) {
  const TemporaryDirectory directory;
  const std::vector<std::size_t> order = {0, 1, 3};
  UnitFile file(directory.path(), {5, 9000, 0, 1}, {.two_places = true});
  const auto write = [&](double value) {
    std::vector<Work> works;
    for (const std::size_t unit : order) {
      const Tensor block = file.memory(unit);
      for (std::int64_t i = 0; i < block.size(); ++i) block.set(i, value);
      works.push_back(file.write(unit, block, {}));
    }
    for (const Work& work : works) work.wait();
  };
  write(1);
  file.exchange();
  file.begin(order, UnitFile::Place::same, UnitFile::Place::other);
  std::vector<double> seen;
  std::thread apart([&] {
    for (const std::size_t unit : order) {
      const Tensor block = file.take(unit);
      seen.push_back(block.at(block.size() - 1));
      file.give_back(unit, false);
    }
  });
  write(2);
  const Tensor again = file.memory(1);
  file.read(1, again).wait();
  apart.join();
  EXPECT_EQ(seen, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(again.at(0), 2);
  EXPECT_EQ(file.traffic().read, 4096 + 12288 + 4096 + 12288);
  EXPECT_EQ(file.traffic().written, 2 * (4096 + 12288 + 4096));
}

TEST(UnitFile, CanBeReadAndWrittenOutOfTurn) {
  const TemporaryDirectory directory;
  UnitFile state(directory.path(), {5, 100});
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

// Whether the most memory that this process has had was set back to what it has now.
bool sets_peak_back() {
  std::ofstream file("/proc/self/clear_refs");
  file << 5 << std::flush;
  return file.good();
}

// The most memory that this process has had, in bytes, since it was set back.
std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(UnitFile, HoldsOneMappedBlockWhereEachIsReleased) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's shadow of the file counts as memory of the process";
#endif
  const TemporaryDirectory directory;
  constexpr std::int64_t block = 1 << 20, blocks = 64;
  UnitFile file(directory.path(), std::vector<std::int64_t>(blocks, block));
  const auto taken = [&](bool releases, double value) {
    EXPECT_TRUE(sets_peak_back()) << "/proc/self/clear_refs cannot be written";
    const std::int64_t before = peak_memory();
    for (std::size_t unit = 0; unit < blocks; ++unit) {
      const Tensor its = file.mapped(unit);
      std::fill_n(its.data<std::uint8_t>(), block, static_cast<std::uint8_t>(value + static_cast<double>(unit)));
      if (releases) file.release(unit);
    }
    return peak_memory() - before;
  };
  EXPECT_LT(taken(true, 3), 4 * block);
  EXPECT_GT(taken(false, 4), (blocks - 4) * block) << "the control: nothing is released";
  file.release();
  EXPECT_LT(taken(true, 5), 4 * block);
  std::vector<std::size_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  file.begin(order);
  for (const std::size_t unit : order) {
    const Tensor its = file.take(unit);
    EXPECT_EQ(its.at(0), 5 + static_cast<double>(unit));
    EXPECT_EQ(its.at(block - 1), 5 + static_cast<double>(unit));
    file.give_back(unit, false);
  }
  EXPECT_EQ(file.traffic().written, 0);
}

TEST(UnitFile, ReadsWhatItWroteIntoMemoryOfTheCaller) {
  const TemporaryDirectory directory;
  for (const bool overlap : {true, false}) {
    UnitFile file(directory.path(), block_sizes, {.overlap = overlap});
    std::vector<Work> works;
    for (int pass = 1; pass < 4; ++pass) {
      for (std::size_t unit = 0; unit < block_sizes.size(); ++unit) {
        if (!file.has(unit)) continue;
        const Tensor block = file.memory(unit);
        std::fill_n(block.data<std::uint8_t>(), block.size(), static_cast<std::uint8_t>(pass + static_cast<int>(unit)));
        file.write(unit, block, {});
        const Tensor read = file.memory(unit);
        file.read(unit, read).wait();
        EXPECT_EQ(read.at(0), pass + static_cast<int>(unit));
        EXPECT_EQ(read.at(read.size() - 1), pass + static_cast<int>(unit));
      }
    }
  }
}

TEST(UnitFile, RefusesAnotherOrder) {
  const TemporaryDirectory directory;
  UnitFile state(directory.path(), {5, 5});
  state.begin({1, 0});
  EXPECT_NE(sentence_of([&] { state.take(0); }).find("order has another one"), std::string::npos);
}

}  // namespace
}  // namespace stretto
