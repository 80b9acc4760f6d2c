// Optimizer state in files: training has the bits of training with state in memory.
#include <gmock/gmock.h>

#include <filesystem>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

TrainingOptions offloaded(TrainingOptions options, const std::string& directory, double ratio = 0) {
  options.sharding.offload = {.optimizer = directory, .ratio = ratio};
  return options;
}

struct OffloadCell {
  Layout layout;
  ZeroStage zero;
  OptimizerOptions optimizer = AdamW::Options();
  DType dtype = DType::f32;
};

TrainingOptions options_of(const OffloadCell& cell) {
  TrainingOptions options = tiny(cell.layout, cell.dtype);
  options.sharding.zero = cell.zero;
  options.optimizer = cell.optimizer;
  options.sharding.unit_bytes = std::size_t{8} << 10;
  return options;
}

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
INSTANTIATE_TEST_SUITE_P(Cells, Offload, testing::ValuesIn(offload_cells));

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

// What a step reads and writes is the state, each once, and the memory that it takes are the buffers.
TEST(OffloadTraffic, IsTheStateOnceEachWay) {
  const TemporaryDirectory directory;
  const TrainingOptions options = options_of({{1}, ZeroStage::none, AdamW::Options(), DType::bf16});
  run_threads(1, [&](const Communicator& world) {
    const std::size_t before = memory_use(MemoryKind::optimizer).bytes;
    Trainer trainer(Mesh(world, {}), offloaded(options, directory.path()));
    EXPECT_EQ(memory_use(MemoryKind::optimizer).bytes, before);
    advance(trainer, 0, 3);
    const OffloadUse use = trainer.optimizer().offloaded().value();
    const std::int64_t state = 12 * trainer.parameters().global_elements();
    EXPECT_GE(use.bytes, state);
    EXPECT_LT(use.bytes, state + 4096 * static_cast<std::int64_t>(trainer.sharded().unit_count()));
    EXPECT_EQ(use.read, 3 * use.bytes);
    EXPECT_EQ(use.written, 3 * use.bytes);
  });
}

// Saved from files on 4 ranks, loaded in memory on 3, and the reverse.
TEST(OffloadCheckpoint, IsThatOfMemory) {
  const TemporaryDirectory scratch;
  const auto saved_and_resumed = [&](bool offloads) {
    const TemporaryDirectory saved;
    TrainingOptions options = options_of({{4}, ZeroStage::optimizer, AdamW::Options(), DType::f64});
    options.global_batch = 12;
    const auto on = [&](bool is_here) { return is_here ? offloaded(options, scratch.path(), 0.3) : options; };
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
      advance(trainer, 2, 2);
      result[static_cast<std::size_t>(world.rank())] = pieces_of(trainer, trainer.sharded().whole_values());
    });
    return result.front();
  };
  Comparer bits(equal_bits);
  EXPECT_EQ(bits.pieces(saved_and_resumed(true), saved_and_resumed(false), "parameter"), "");
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
}  // namespace parity
