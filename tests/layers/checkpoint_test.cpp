// Training that is saved and continued, with equal bits on any layout.
#include "stretto/layers/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "layers/checkpoint/files/safetensors.hpp"
#include "saved_checkpoint.hpp"

namespace stretto {
namespace {

// One rank's values after six steps without a break.
std::map<std::string, double> uninterrupted(DType dtype) {
  std::map<std::string, double> values;
  run_threads(1, [&](const Communicator& world) {
    Training training(world, {.dtype = dtype});
    training.advance(0, 6);
    values = training.values();
  });
  return values;
}

class Checkpoint : public testing::TestWithParam<DType> {};

// Updates do not depend on the layout (AdamW.GivesTheSameBits...), so that only the checkpoint can.
TEST_P(Checkpoint, ContinuesBitForBitOnAnyLayout) {
  const std::map<std::string, double> expected = uninterrupted(GetParam());
  const Layout layouts[] = {{{}, ZeroStage::none},
                            {{{Axis::data, 4}}, ZeroStage::values},
                            {{{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::optimizer},
                            {{{Axis::tensor, 4}}, ZeroStage::none},
                            {{{Axis::data, 3}}, ZeroStage::none},
                            {{{Axis::tensor, 2}, {Axis::data, 3}}, ZeroStage::gradients}};
  for (Layout from : layouts) {
    from.dtype = GetParam();
    const TemporaryDirectory directory;
    train_and_save(from, directory.path());
    for (Layout to : layouts) {
      to.dtype = GetParam();
      for (const std::map<std::string, double>& values : load_and_continue(to, directory.path())) {
        for (const auto& [element, value] : values) {
          ASSERT_EQ(value, expected.at(element)) << element << " from " << from.mesh.ranks() << " to " << to.mesh.ranks();
        }
      }
    }
  }
}

TEST_P(Checkpoint, ControlFailsWithoutTheMoments) {
  const Layout layout{.dtype = GetParam()};
  const TemporaryDirectory directory;
  train_and_save(layout, directory.path());
  EXPECT_EQ(load_and_continue(layout, directory.path()).front(), uninterrupted(GetParam()));
  EXPECT_NE(load_and_continue(layout, directory.path(), false).front(), uninterrupted(GetParam()));
}

// The gradients of the third step are in the checkpoint, since no update has taken them. The controls: they are not there,
// and training without a delay.
TEST_P(Checkpoint, HoldsGradientsThatAreOneStepLate) {
  const auto late = [](const MeshShape& mesh, ZeroStage stage) {
    return Layout{.mesh = mesh, .stage = stage, .dtype = GetParam(), .delay = 1};
  };
  const std::vector<Layout> layouts = {late({}, ZeroStage::none), late({{Axis::data, 3}}, ZeroStage::none),
                                       late({{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::optimizer),
                                       late({{Axis::tensor, 2}, {Axis::data, 3}}, ZeroStage::gradients)};
  std::map<std::string, double> expected;
  on_ranks_of(layouts[0], [&](const Communicator& world) {
    Training training(world, layouts[0]);
    training.advance(0, 6);
    expected = training.values();
  });
  EXPECT_NE(expected, uninterrupted(GetParam()));
  for (const Layout& from : layouts) {
    const TemporaryDirectory directory;
    train_and_save(from, directory.path());
    for (const Layout& to : layouts) {
      for (const std::map<std::string, double>& values : load_and_continue(to, directory.path())) {
        for (const auto& [element, value] : values) {
          ASSERT_EQ(value, expected.at(element)) << element << " from " << from.mesh.ranks() << " to " << to.mesh.ranks();
        }
      }
    }
    EXPECT_NE(load_and_continue(layouts[0], directory.path(), false).front(), expected);
    Layout without = layouts[0];
    without.delay = 0;
    on_ranks_of(without, [&](const Communicator& world) {
      Training training(world, without, 99);
      EXPECT_THAT(sentence_of([&] { training.load(find_checkpoint(directory.path())); }),
                  testing::HasSubstr("train on with a delay of 1"));
    });
  }
}

// A checkpoint without them is one to begin from: its first step updates nothing.
TEST_P(Checkpoint, GoesOnWithADelayFromOneWithout) {
  const TemporaryDirectory directory;
  train_and_save({.dtype = GetParam()}, directory.path());
  const Layout to{.dtype = GetParam(), .delay = 1};
  on_ranks_of(to, [&](const Communicator& world) {
    Training training(world, to, 99);
    training.load(find_checkpoint(directory.path()));
    EXPECT_FALSE(training.sharded().has_late());
    training.advance(3, 1);
    EXPECT_EQ(training.optimizer().steps(), 3);
    training.advance(4, 1);
    EXPECT_EQ(training.optimizer().steps(), 4);
  });
}

TEST_P(Checkpoint, ContinuesWithAnotherOptimizerThanAdamW) {
  for (const OptimizerOptions& optimizer : {OptimizerOptions(SGD::Options{}), OptimizerOptions(Muon::Options{})}) {
    const Layout from{{{Axis::data, 2}}, ZeroStage::values, GetParam(), false, optimizer};
    const Layout to{{{Axis::tensor, 2}}, ZeroStage::none, GetParam(), false, optimizer};
    const TemporaryDirectory directory;
    train_and_save(from, directory.path());
    const auto expected = load_and_continue(from, directory.path()).front();
    for (const auto& values : load_and_continue(to, directory.path())) {
      for (const auto& [element, value] : values) EXPECT_EQ(value, expected.at(element)) << element;
    }
    EXPECT_NE(load_and_continue(from, directory.path(), false).front(), expected);
  }
}

// The control: with the parameter trained, its values change.
TEST_P(Checkpoint, HoldsFrozenParametersWithoutState) {
  const Layout from{{{Axis::data, 2}}, ZeroStage::values, GetParam(), false, {}, "replicated"};
  Layout to{{{Axis::tensor, 2}}, ZeroStage::none, GetParam(), false, {}, "replicated"};
  const TemporaryDirectory directory;
  std::map<std::string, double> initial;
  on_ranks_of({}, [&](const Communicator& world) { initial = Training(world, {.dtype = GetParam()}).values(); });
  train_and_save(from, directory.path());
  for (const char* const shard : {"rank_00000", "rank_00001"}) {
    const SafetensorsReader file(directory / "step_00000003/" + shard + ".safetensors");
    EXPECT_TRUE(file.has("replicated") && file.has("m.divided"));
    EXPECT_FALSE(file.has("m.replicated"));
  }
  const auto expected = load_and_continue(from, directory.path()).front();
  const auto changed = [&](const std::map<std::string, double>& values, const std::string& name) {
    return std::ranges::any_of(
        values, [&](const auto& each) { return each.first.starts_with(name) && each.second != initial.at(each.first); });
  };
  for (const auto& values : load_and_continue(to, directory.path())) {
    for (const auto& [element, value] : values) EXPECT_EQ(value, expected.at(element)) << element;
    EXPECT_FALSE(changed(values, "replicated"));
    EXPECT_TRUE(changed(values, "divided"));
  }
  to.frozen = "divided";
  EXPECT_TRUE(changed(load_and_continue(to, directory.path(), false).front(), "replicated"));
}

INSTANTIATE_TEST_SUITE_P(Types, Checkpoint, testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& cell) { return std::string(name(cell.param)); });

// Quantized sums carry errors and random numbers from step to step, besides the optimizer's state.
class CheckpointOfQuantizedSums : public testing::Test {
 protected:
  static constexpr Layout four = {{{Axis::data, 4}}, ZeroStage::values, DType::f32, true};

  // Errors that have yet to be fed back, over all ranks, by element.
  static std::map<std::string, double> errors_of(Training& training, const Communicator& world) {
    std::map<std::string, double> errors;
    const ShardedParameters& sharded = training.sharded();
    for (const auto& parameter : sharded.parameters().all()) {  // here each is a unit of its own
      Tensor sum({parameter->elements()}, DType::f32, Device::cpu);
      sum.zero();
      for (const ErrorFeedback::Entry& entry : sharded.errors().entries()) {
        if (entry.tensor == parameter->name) sum.copy_from(entry.values.view(0, {parameter->elements()}));
      }
      world.all_reduce(sum, ReduceOp::sum, Stream::inline_()).wait();
      for (std::int64_t i = 0; i < sum.size(); ++i) errors[fmt::format("{}[{}]", parameter->name, i)] = sum.at(i);
    }
    return errors;
  }

  void SetUp() override {
    on_ranks_of(four, [&](const Communicator& world) {
      Training training(world, four);
      training.advance(0, 3);
      training.save(directory.path(), 3);
      const auto errors = errors_of(training, world);
      training.advance(3, 3);
      const auto values = training.values();
      if (world.rank() != 0) return;
      saved_errors = errors;
      uninterrupted = values;
    });
  }

  const TemporaryDirectory directory;
  std::map<std::string, double> saved_errors, uninterrupted;
};

TEST_F(CheckpointOfQuantizedSums, GoesOnBitForBitInTheSameLayout) {
  for (const auto& values : load_and_continue(four, directory.path())) EXPECT_EQ(values, uninterrupted);
  EXPECT_NE(load_and_continue(four, directory.path(), false).front(), uninterrupted);  // the control
}

TEST_F(CheckpointOfQuantizedSums, KeepsTheErrorsOfAllRanksInAnotherLayout) {
  EXPECT_NE(std::ranges::count_if(saved_errors, [](const auto& error) { return error.second != 0; }), 0);
  for (const int ranks : {2, 3}) {
    Layout other = four;
    other.mesh[Axis::data] = ranks;
    on_ranks_of(other, [&](const Communicator& world) {
      Training training(world, other);
      training.load(find_checkpoint(directory.path()));
      for (const auto& [element, error] : errors_of(training, world)) {
        EXPECT_NEAR(error, saved_errors.at(element), 1e-6) << element;
      }
    });
  }
}

// What is saved is the state at save(), whatever training does while it is written.
TEST(CheckpointInBackground, HasTheStateOfItsStep) {
  const Layout layout{{{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::values};
  const TemporaryDirectory directory;
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.advance(0, 3);
    CheckpointSaver saver(training.sharded(), training.optimizer(), directory.path(), {.in_background = true});
    saver.save(3);
    training.advance(3, 5);
  });
  const std::map<std::string, double> expected = uninterrupted(layout.dtype);
  for (const auto& values : load_and_continue({}, directory.path())) EXPECT_EQ(values, expected);
}

}  // namespace
}  // namespace stretto
