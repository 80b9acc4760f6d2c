// States in the memory of two ranks each: what is restored after a loss, with equal bits.
#include "stretto/layers/replicated_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "saved_training.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

// Values after `steps` steps without a break, on one rank.
std::map<std::string, double> undisturbed(std::int64_t steps) {
  std::map<std::string, double> values;
  run_threads(1, [&](const Communicator& world) {
    Training training(world, {});
    training.advance(0, steps);
    values = training.values();
  });
  return values;
}

std::map<std::string, double> values_saved_in(const std::string& directory) {
  std::map<std::string, double> values;
  run_threads(1, [&](const Communicator& world) {
    Training training(world, {}, 99);
    training.load(find_checkpoint(directory));
    values = training.values();
  });
  return values;
}

// Trains `steps` steps on the layout, keeps the state after each, loses ranks, and saves what the others have.
// Returns the step, as all survivors know it.
std::optional<std::int64_t> keep_and_save(const Layout& layout, std::int64_t steps, const std::vector<int>& lost,
                                          const std::string& directory) {
  const auto ranks = static_cast<int>(layout.mesh.ranks());
  std::vector<std::optional<std::int64_t>> found(static_cast<std::size_t>(ranks));
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::find(lost.begin(), lost.end(), rank) == lost.end()) left.push_back(rank);
  }
  run_threads(ranks, [&](const Communicator& world) {
    ReplicatedState state;
    state.begin(world);
    {
      Training training(world, layout);
      for (std::int64_t step = 0; step < steps; ++step) {
        training.advance(step, 1);
        state.keep(training.sharded(), training.optimizer(), step + 1, {{"after", std::to_string(step + 1)}});
      }
      training.advance(steps, 1);  // whose state must not be found
    }
    const Communicator survivors = world.subgroup(left, "survivors");
    if (survivors) found[static_cast<std::size_t>(world.rank())] = state.save(survivors, directory);
  });
  for (const int rank : left) EXPECT_EQ(found[static_cast<std::size_t>(rank)], found[0]) << rank;
  return found[0];
}

const Layout layouts[] = {{{{Axis::data, 2}}},
                          {{{Axis::data, 4}}, ZeroStage::values},
                          {{{Axis::tensor, 2}, {Axis::data, 2}}},
                          {{{Axis::data, 5}}, ZeroStage::none},
                          {{{Axis::tensor, 2}, {Axis::data, 3}}, ZeroStage::gradients}};

TEST(ReplicatedState, RestoresTheLastStepBitForBitWithoutAnyOneRank) {
  const std::map<std::string, double> expected = undisturbed(3);
  ASSERT_NE(undisturbed(2), expected);  // a step that is lost would be seen
  for (const Layout& layout : layouts) {
    const auto ranks = static_cast<int>(layout.mesh.ranks());
    for (int lost = 1; lost < ranks; ++lost) {
      SCOPED_TRACE(std::to_string(lost) + " of " + std::to_string(ranks));
      const TemporaryDirectory directory;
      ASSERT_EQ(keep_and_save(layout, 3, {lost}, directory.path()), 3);
      EXPECT_EQ(values_saved_in(directory.path()), expected);
    }
  }
}

TEST(ReplicatedState, RestoresGradientsThatAreOneStepLate) {
  const Layout layout{.mesh = {{Axis::data, 4}}, .delay = 1};
  std::map<std::string, double> expected, found;
  const auto values_of = [](const Communicator& world, const Training& training, std::map<std::string, double>& to) {
    const auto values = training.values();
    if (world.rank() == 0) to = values;
  };
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.advance(0, 5);
    values_of(world, training, expected);
  });
  const TemporaryDirectory directory;
  ASSERT_EQ(keep_and_save(layout, 3, {2}, directory.path()), 3);
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout, 99);
    training.load(find_checkpoint(directory.path()));
    training.advance(3, 2);
    values_of(world, training, found);
  });
  EXPECT_EQ(found, expected);
}

TEST(ReplicatedState, FindsNothingWithoutARankAndItsPartner) {
  const TemporaryDirectory directory;
  EXPECT_EQ(keep_and_save({{{Axis::data, 4}}}, 3, {1, 3}, directory.path()), std::nullopt);
  EXPECT_FALSE(has_checkpoint(directory.path()));
  EXPECT_EQ(keep_and_save({{{Axis::data, 4}}}, 3, {2, 3}, directory.path()), 3);  // not partners
}

TEST(ReplicatedState, KeepsTheErrorsOfQuantizedSums) {
  const Layout layout{{{Axis::data, 4}}, ZeroStage::values, DType::f32, true};
  std::map<std::string, double> expected, found;
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.advance(0, 4);
    const auto values = training.values();
    if (world.rank() == 0) expected = values;
  });
  const TemporaryDirectory directory;
  ASSERT_EQ(keep_and_save(layout, 3, {2}, directory.path()), 3);
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout, 99);
    training.load(find_checkpoint(directory.path()));
    training.advance(3, 1);
    const auto values = training.values();
    if (world.rank() == 0) found = values;
  });
  EXPECT_EQ(found, expected);
}

// A job of three gets a fourth rank, which has no state yet, and loses one of the others.
TEST(ReplicatedState, HasTheStateOfTheJobBeforeUntilALargerOneHasItsOwn) {
  for (const bool keeps_one : {false, true}) {
    SCOPED_TRACE(keeps_one);
    const TemporaryDirectory directory;
    run_threads(4, [&](const Communicator& world) {
      ReplicatedState state;
      if (const Communicator three = world.subgroup({0, 1, 2}, "three")) {
        Training training(three, {{{Axis::data, 3}}});
        state.begin(three);
        training.advance(0, 2);
        state.keep(training.sharded(), training.optimizer(), 2);
        state.wait();
      }
      state.begin(world);
      Training training(world, {{{Axis::data, 4}}});
      training.advance(0, 3);
      if (keeps_one) {
        state.keep(training.sharded(), training.optimizer(), 3);
        state.wait();
      }
      if (const Communicator survivors = world.subgroup({0, 2, 3}, "survivors")) {
        EXPECT_EQ(state.save(survivors, directory.path()), keeps_one ? 3 : 2);
      }
    });
    EXPECT_EQ(values_saved_in(directory.path()), undisturbed(keeps_one ? 3 : 2));
  }
}

TEST(ReplicatedState, AllocatesNothingAfterTheSecondStep) {
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{{Axis::data, 2}}});
    ReplicatedState state;
    state.begin(world);
    std::size_t after_two = 0;
    for (std::int64_t step = 0; step < 5; ++step) {
      training.advance(step, 1);
      state.keep(training.sharded(), training.optimizer(), step + 1);
      state.wait();
      world.barrier(Stream::inline_()).wait();
      if (step == 1) after_two = memory_use(MemoryKind::buffers).bytes;
    }
    EXPECT_EQ(memory_use(MemoryKind::buffers).bytes, after_two);
    world.barrier(Stream::inline_()).wait();
  });
}

}  // namespace
}  // namespace stretto
