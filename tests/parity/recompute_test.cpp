// Recomputation may not change a bit of the results, at any level, in any type, on any layout.
#include "parity.hpp"

namespace parity {
namespace {

class Recomputing : public testing::TestWithParam<Cell> {};

std::int64_t times(const Trace& trace, const std::string& tag) {
  return std::ranges::count_if(trace.records, [&](const Record& record) { return record.tag == tag; });
}

TEST_P(Recomputing, ChangesNoBit) {
  const auto& [layout, dtype] = GetParam();
  for (const ZeroStage stage : {ZeroStage::optimizer, ZeroStage::values}) {
    TrainingOptions options = tiny(layout, dtype);
    options.sharding.zero = stage;
    const std::vector<Trace> expected = train(layout, options);
    for (const Recompute level : {Recompute::selective, Recompute::full}) {
      options.recompute.level = level;
      EXPECT_EQ(divergence(expected, train(layout, options)), "") << static_cast<int>(level);
    }
    if (layout.tensor > 1) {
      options.recompute.partition = true;
      const std::vector<Trace> divided = train(layout, options);
      EXPECT_EQ(divergence(expected, divided), "") << "divided";
      const std::int64_t microbatches = options.global_batch / layout.data;
      EXPECT_EQ(times(divided.front(), "block input"), options.model.layers * microbatches);
      // The block's last sum is not made again.
      EXPECT_EQ(times(divided.front(), "row-parallel forward"), 3 * options.model.layers * microbatches);
    }
    options.seed = 5;
    EXPECT_NE(divergence(expected, train(layout, options)), "") << "the control";
  }
}

// The allocator serves every step from what the first one took, and activations reach the same peak.
TEST(Activations, TakeNoMemoryAfterTheFirstStep) {
  for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full}) {
    run_threads(1, [&](const Communicator& world) {
      TrainingOptions options = tiny({1, 1}, DType::f32);
      options.recompute.level = level;
      Trainer trainer(Mesh(world, {}), options);
      trainer.step(text_of_step(options, 0), 1e-3);
      const std::size_t reserved = reserved_memory();
      const std::size_t peak = memory_use(MemoryKind::activations).peak_bytes;
      for (std::int64_t step = 1; step < 5; ++step) trainer.step(text_of_step(options, step), 1e-3);
      EXPECT_EQ(reserved_memory(), reserved);
      EXPECT_EQ(memory_use(MemoryKind::activations).peak_bytes, peak);
      const Tensor more({(4 + static_cast<std::int64_t>(level)) << 20}, DType::f32);  // the control: a new size
      EXPECT_GT(reserved_memory(), reserved);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Recomputing,
                         testing::Values(Cell{{1, 1}, DType::f64}, Cell{{2, 1}, DType::f16}, Cell{{2, 2}, DType::f32},
                                         Cell{{2, 3}, DType::bf16}, Cell{{1, 4}, DType::f64}),
                         [](const auto& cell) {
                           return fmt::format("{}x{}_{}", cell.param.layout.data, cell.param.layout.tensor,
                                              name(cell.param.dtype));
                         });

}  // namespace
}  // namespace parity
