// State in files: training has the bits of training with state in memory.
#include "offload.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "stretto/layers/checkpoint.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"

namespace parity::offload {
namespace {

class Offload : public testing::TestWithParam<OffloadCell> {};

TEST_P(Offload, HasTheBitsOfMemory) {
  const OffloadCell& cell = GetParam();
  const TemporaryDirectory directory;
  const TrainingOptions options = options_of(cell);
  const std::vector<Trace> expected = train(cell.layout, options);
  for (const double ratio : {0.0, 0.4, 1.0}) {
    EXPECT_EQ(divergence(expected, train(cell.layout, offloaded(options, directory.path(), ratio))), "")
        << "ratio " << ratio;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

const std::vector<OffloadCell> offload_cells = {
    {{1}, ZeroStage::none},
    {{2}, ZeroStage::optimizer},
    {{2}, ZeroStage::none, SGD::Options{.momentum = 0.9}},
    {{4}, ZeroStage::values, AdamW::Options(), DType::bf16},
    {{2}, ZeroStage::gradients, AdamW::Options(), DType::f16},
    {{3, 1, 2}, ZeroStage::optimizer, AdamW::Options(), DType::bf16},
    {{2, 2}, ZeroStage::values, AdamW::Options(), DType::f64},
    {{2}, ZeroStage::gradients, Muon::Options(), DType::bf16},
};
INSTANTIATE_TEST_SUITE_P(Cells, Offload, testing::ValuesIn(of_today(offload_cells, 3)));

TEST(OffloadCombinations, HaveTheBitsOfMemory) {
  const TemporaryDirectory directory;
  for (const int ranks : {1, 2}) {
    const TrainingOptions options = options_of({{ranks}, ZeroStage::values, AdamW::Options(), DType::f32});
    const std::vector<Trace> expected = train({ranks}, options);
    for (const double state : {0.0, 1.0}) {
      for (const double gradients : {0.0, 0.4, 1.0}) {
        for (const double values : of_today({0.0, 0.4, 1.0}, 3)) {
          EXPECT_EQ(divergence(expected, train({ranks}, in_files(options, directory.path(), {state, gradients, values}))),
                    "")
              << ranks << " ranks, ratios " << state << ", " << gradients << ", " << values;
        }
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

class OffloadOfAll : public testing::TestWithParam<OffloadCell> {};

TEST_P(OffloadOfAll, HasTheBitsOfMemory) {
  const OffloadCell& cell = GetParam();
  const TemporaryDirectory directory;
  TrainingOptions options = options_of(cell);
  options.global_batch = 3L * cell.layout.data;
  const double values = cell.zero == ZeroStage::values ? 0 : 1;
  for (const bool overlap : {true, false}) {
    options.sharding.overlap = overlap;
    const std::vector<Trace> expected = train(cell.layout, options);
    EXPECT_EQ(divergence(expected, train(cell.layout, in_files(options, directory.path(), {0, 0, values}))), "");
  }
}

const std::vector<OffloadCell> all_cells = {
    {{1}, ZeroStage::values, AdamW::Options(), DType::f64},
    {{1}, ZeroStage::values, SGD::Options{.momentum = 0.9}, DType::bf16},
    {{1}, ZeroStage::gradients, Muon::Options(), DType::f16},
    {{2}, ZeroStage::values, SGD::Options(), DType::f32},
    {{2}, ZeroStage::gradients, SGD::Options{.momentum = 0.9}, DType::bf16},
    {{2}, ZeroStage::values, Muon::Options(), DType::bf16},
    {{4}, ZeroStage::values, AdamW::Options(), DType::bf16},
    {{4}, ZeroStage::gradients, AdamW::Options(), DType::f64},
    {{4}, ZeroStage::values, Muon::Options(), DType::f32},
    {{3}, ZeroStage::values, AdamW::Options(), DType::f16},
    {{2, 2}, ZeroStage::values, AdamW::Options(), DType::f64},
    {{2, 1, 2}, ZeroStage::gradients, AdamW::Options(), DType::f32},
    {{2, 1, 2}, ZeroStage::values, AdamW::Options(), DType::bf16},
    {{1, 1, 2}, ZeroStage::values, AdamW::Options(), DType::f32},
    {{1, 1, 1, 2}, ZeroStage::values, AdamW::Options(), DType::f32},
    {{4}, ZeroStage::values, AdamW::Options(), DType::f32, 2, QuantizedFormat::int8},
    {{2}, ZeroStage::values, AdamW::Options(), DType::f32, 1, QuantizedFormat::none, QuantizedFormat::int8},
};
INSTANTIATE_TEST_SUITE_P(Cells, OffloadOfAll, testing::ValuesIn(of_today(all_cells, 3)));

TEST(OffloadControl, StateThatIsLostDiffers) {
  const TemporaryDirectory directory;
  const TrainingOptions options = options_of({{1}, ZeroStage::none});
  const auto train_with = [&](bool loses) {
    Pieces result;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), offloaded(options, directory.path()));
      advance(trainer, 0, 2);
      if (loses) trainer.optimizer().states().front().slots[0].zero();
      advance(trainer, 2, 1);
      result = pieces_of(trainer, trainer.sharded().whole_values());
    });
    return result;
  };
  Comparer bits(equal_bits);
  EXPECT_EQ(bits.pieces(train_with(false), train_with(false), "parameter"), "");
  EXPECT_NE(bits.pieces(train_with(false), train_with(true), "parameter"), "");
}

// Updates begin behind backward, and are taken back where a norm is clipped. The norms of the plain order choose the
// largest.
TEST(OffloadSpeculation, HasTheBitsOfThePlainOrder) {
  const TemporaryDirectory directory;
  const std::vector<OffloadCell> cells = {{{1}, ZeroStage::none},
                                          {{2}, ZeroStage::none, SGD::Options{.momentum = 0.9}},
                                          {{2}, ZeroStage::gradients, AdamW::Options(), DType::bf16},
                                          {{4}, ZeroStage::values, AdamW::Options(), DType::f32},
                                          {{2, 2, 2}, ZeroStage::optimizer, AdamW::Options(), DType::bf16}};
  for (const OffloadCell& cell : of_today(cells, 3)) {
    TrainingOptions options = options_of(cell);
    options.global_batch = 2L * cell.layout.data * cell.layout.pipeline;
    std::vector<double> norms = train(cell.layout, options).front().norms;
    std::ranges::sort(norms);
    options.clip_norm = norms[norms.size() / 2];
    const std::vector<Trace> expected = train(cell.layout, options);
    const auto clipped =
        std::ranges::count_if(expected.front().norms, [&](double norm) { return norm > options.clip_norm; });
    EXPECT_GT(clipped, 0);
    EXPECT_LT(clipped, trained_steps);
    options.sharding.offload = {.optimizer = {directory.path(), 0.2}, .speculates = true};
    std::int64_t taken_back = 0;
    EXPECT_EQ(divergence(expected, train(cell.layout, options)), "") << cell.layout.ranks() << " ranks";
    run_threads(cell.layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, cell.layout.mesh()), options);
      advance(trainer, 0, trained_steps);
      if (world.rank() == 0) taken_back = trainer.speculation()->taken_back();
    });
    EXPECT_EQ(taken_back, clipped);
  }
}

// The inputs of blocks go out behind forward and come back ahead of backward.
TEST(OffloadedActivations, HaveTheBitsOfMemory) {
  const TemporaryDirectory directory;
  for (const Layout& layout : std::vector<Layout>{{1}, {2, 2}, {1, 1, 2}, {1, 1, 1, 2}}) {
    TrainingOptions options = options_of({layout, ZeroStage::optimizer, AdamW::Options(), DType::f32});
    options.model.layers = 4;
    options.global_batch = 4L * layout.data;
    options.recompute.level = Recompute::full;
    const std::vector<Trace> expected = train(layout, options);
    options.recompute.directory = directory.path();
    EXPECT_EQ(divergence(expected, train(layout, options)), "") << layout.ranks() << " ranks";
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// Overwrites the scratch files of this process in the directory; returns how many there are.
int spoil_files(const std::string& directory) {
  int spoiled = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string path = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (!path.starts_with(directory)) continue;
    std::ofstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary)
        << std::string(std::filesystem::file_size(entry.path()), 'x');
    ++spoiled;
  }
  return spoiled;
}

// The control: inputs that are others when backward reads them change the gradients. (Two may still be on their way out.)
TEST(OffloadedActivations, AreWhatBackwardReads) {
  const TemporaryDirectory directory;
  TrainingOptions options = options_of({{1}, ZeroStage::none, AdamW::Options(), DType::f32});
  options.model.layers = 4;
  options.global_batch = 1;
  options.recompute = {.level = Recompute::full, .directory = directory.path()};
  const auto gradients = [&](bool spoils) {
    Pieces result;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.model.sequence)), targets = tokens;
      text_of_step(options, 0)(0, tokens.data(), targets.data());
      ShardedParameters& sharded = trainer.sharded();
      sharded.begin_step();
      Microbatches one(trainer.model(), sharded, Batch::of(tokens, targets, options.model.sequence), 1, 1.0);
      one.compute({ActionKind::forward, 0, 0}, {});
      if (spoils) {
        EXPECT_GT(spoil_files(directory.path()), 0);
      }
      one.compute({ActionKind::backward, 0, 0}, {});
      sharded.end_microbatch();
      sharded.finish_sums();
      result = pieces_of(trainer, sharded.whole_gradients());
    });
    return result;
  };
  Comparer bits(equal_bits);
  EXPECT_EQ(bits.pieces(gradients(false), gradients(false), "gradient"), "");
  EXPECT_NE(bits.pieces(gradients(false), gradients(true), "gradient"), "");
}

// Saved from files on 4 ranks, loaded in memory on 3, and the reverse.
TEST(OffloadCheckpoint, IsThatOfMemory) {
  const TemporaryDirectory scratch;
  const auto saved_and_resumed = [&](bool offloads, bool all, bool loses = false) {
    const TemporaryDirectory saved;
    TrainingOptions options =
        options_of({{4}, all ? ZeroStage::values : ZeroStage::optimizer, AdamW::Options(), all ? DType::bf16 : DType::f64});
    options.global_batch = 12;
    const auto on = [&](bool is_here) {
      if (!is_here) return options;
      return all ? in_files(options, scratch.path(), {0, 0, 0.2}) : offloaded(options, scratch.path(), 0.3);
    };
    run_threads(4, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, Layout{4}.mesh()), on(offloads));
      advance(trainer, 0, 2);
      save_checkpoint(trainer.sharded(), trainer.optimizer(), saved.path(), 2);
    });
    std::vector<Pieces> result(3);
    run_threads(3, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, Layout{3}.mesh()), on(!offloads));
      const LoadedCheckpoint loaded =
          load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(saved.path()), true);
      trainer.optimizer().restore(loaded.optimizer_steps);
      if (loses) trainer.optimizer().states().front().slots[0].zero();
      advance(trainer, 2, 2);
      result[static_cast<std::size_t>(world.rank())] = pieces_of(trainer, trainer.sharded().whole_values());
    });
    return result.front();
  };
  Comparer bits(equal_bits);
  for (const bool all : {false, true}) {
    EXPECT_EQ(bits.pieces(saved_and_resumed(true, all), saved_and_resumed(false, all), "parameter"), "");
  }
  EXPECT_NE(bits.pieces(saved_and_resumed(false, true), saved_and_resumed(false, true, true), "parameter"), "")
      << "the control: some state in the file is lost";
}

TEST(OffloadControl, GradientsThatAreLostDiffer) {
  const TemporaryDirectory directory;
  const TrainingOptions options = in_files(options_of({{1}, ZeroStage::values}), directory.path(), {1, 0, 1});
  const auto train_with = [&](bool loses) {
    Pieces result;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      trainer.compute_gradients(text_of_step(trainer.options(), 0));
      if (loses) trainer.sharded().ranges().front().gradient.zero();
      trainer.optimizer().step(0.01, 1);
      result = pieces_of(trainer, trainer.sharded().whole_values());
    });
    return result;
  };
  Comparer bits(equal_bits);
  EXPECT_EQ(bits.pieces(train_with(false), train_with(false), "parameter"), "");
  EXPECT_NE(bits.pieces(train_with(false), train_with(true), "parameter"), "");
}

TEST(OffloadControl, ValuesThatAreLostDiffer) {
  const TemporaryDirectory directory;
  const TrainingOptions options = in_files(options_of({{2}, ZeroStage::values}), directory.path(), {1, 1, 0});
  const auto train_with = [&](bool loses) {
    std::vector<Pieces> result(2);
    run_threads(2, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, Layout{2}.mesh()), options);
      advance(trainer, 0, 1);
      if (loses) trainer.sharded().ranges().front().value.zero();
      advance(trainer, 1, 1);
      result[static_cast<std::size_t>(world.rank())] = pieces_of(trainer, trainer.sharded().whole_values());
    });
    return result.front();
  };
  Comparer bits(equal_bits);
  EXPECT_EQ(bits.pieces(train_with(false), train_with(false), "parameter"), "");
  EXPECT_NE(bits.pieces(train_with(false), train_with(true), "parameter"), "");
}

TEST(OffloadRefusals, SayWhatCannotLieInFiles) {
  run_threads(1, [&](const Communicator& world) {
    const auto refusal = [&](ZeroStage zero, int delay, const ShardedParameters::Options::Offload& offload) {
      TrainingOptions options = options_of({{1}, zero});
      options.sharding.delay = delay;
      options.sharding.offload = offload;
      return sentence_of([&] { Trainer(Mesh(world, {}), options); });
    };
    EXPECT_THAT(refusal(ZeroStage::optimizer, 0, {.gradients = {"/tmp"}}), testing::HasSubstr("give stage 2 or 3"));
    EXPECT_THAT(refusal(ZeroStage::gradients, 0, {.values = {"/tmp"}}), testing::HasSubstr("give stage 3"));
    EXPECT_THAT(refusal(ZeroStage::gradients, 1, {.optimizer = {"/tmp"}, .speculates = true}),
                testing::HasSubstr("With a delay of 1"));
    EXPECT_THAT(refusal(ZeroStage::gradients, 0, {.speculates = true}), testing::HasSubstr("give the optimizer's state"));
    EXPECT_THAT(refusal(ZeroStage::values, 0, {.values = {"/none"}}), testing::HasSubstr("/none cannot hold"));
  });
}

TEST(OffloadRefusals, NameTheDirectory) {
  run_threads(1, [&](const Communicator& world) {
    EXPECT_THAT(sentence_of([&] {
                  Trainer(Mesh(world, {}), offloaded(options_of({{1}, ZeroStage::none}), "/none"));
                }),
                testing::HasSubstr("/none cannot hold a scratch file"));
  });
}

}  // namespace
}  // namespace parity::offload
