// What reading and writing take longer than the computation beside them, by hand.
#include "planning/layout/file_time.hpp"

#include <gmock/gmock.h>

#include "planning/layout/layout_machine.hpp"
#include "stretto/planning/layout_search.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr StateElements state_elements{.all = 1000, .trained = 1000, .matrix = 100};

// 2 microbatches on 4 data-parallel ranks, bf16 with AdamW: 12 bytes of state for an element.
TrainingOptions layout_with(const ShardedParameters::Options::Offload& offload, ZeroStage zero = ZeroStage::values) {
  TrainingOptions layout{.model = {.layers = 2, .hidden = 8, .heads = 2, .sequence = 4, .vocabulary = 16},
                         .mesh = {{Axis::data, 4}},
                         .micro_batch = 1,
                         .global_batch = 8};
  layout.sharding.dtype = DType::bf16;
  layout.sharding.zero = zero;
  layout.sharding.unit_bytes = 400;
  layout.sharding.offload = offload;
  return layout;
}

TEST(FileTraffic, IsWhatAStepReadsAndWrites) {
  EXPECT_EQ(file_traffic(layout_with({}), state_elements).all(), 0);
  const FileTraffic state = file_traffic(layout_with({.optimizer = {"/d"}}), state_elements);
  EXPECT_EQ(state.passes, 0);
  EXPECT_EQ(state.update, 2 * 12 * 1000 / 4);
  EXPECT_EQ(state.first_and_last, 2 * 12 * 100 / 4);
  EXPECT_EQ(file_traffic(layout_with({.optimizer = {"/d"}}, ZeroStage::none), state_elements).update, 2 * 12 * 1000);
  EXPECT_EQ(file_traffic(layout_with({.optimizer = {"/d", 0.25}}), state_elements).update, 0.75 * 2 * 12 * 1000 / 4);
  const FileTraffic gradients = file_traffic(layout_with({.gradients = {"/d"}}), state_elements);
  EXPECT_EQ(gradients.passes, 3 * 4 * 1000 / 4) << "written twice, read once";
  EXPECT_EQ(gradients.update, 4 * 1000 / 4);
  const FileTraffic values = file_traffic(layout_with({.values = {"/d"}}), state_elements);
  EXPECT_EQ(values.passes, 2 * 2 * 2 * 1000 / 4) << "of two microbatches, two gathers each";
  EXPECT_EQ(values.update, 2 * 2 * 1000 / 4);
  TrainingOptions muon = layout_with({.optimizer = {"/d"}, .gradients = {"/d"}});
  muon.optimizer = Muon::Options{};
  EXPECT_EQ(file_traffic(muon, state_elements).update, 2 * (2 * 8 + 4) * 1000 / 4) << "first for the owners of matrices";
  TrainingOptions activations = layout_with({});
  activations.recompute = {.level = Recompute::full, .directory = "/d"};
  EXPECT_EQ(file_traffic(activations, state_elements).passes, 2 * 2 * 4 * 8 * 2 * 2)
      << "2 ways, 2 microbatches, 4 x 8, 2 blocks";
}

TEST(FileSeconds, AreWhatComputationDoesNotHide) {
  TrainingCluster cluster = machine_without_memory_time();
  cluster.file_bytes_per_second = 100;
  const TrainingOptions state = layout_with({.optimizer = {"/d"}});  // 60 s for the update, 6 s of them first and last
  const auto seconds = [&](const TrainingOptions& layout, double computing, double update) {
    const StepComputing step{.passes = computing, .last_backward = computing / 4, .update = update};
    return file_seconds(layout, state_elements, step, cluster);
  };
  EXPECT_EQ(seconds(state, 1000, 0), 60 + 6);
  EXPECT_EQ(seconds(state, 0, 20), 40 + 6);
  EXPECT_EQ(seconds(state, 0, 100), 6);
  TrainingOptions behind = state;
  behind.sharding.delay = 1;
  EXPECT_EQ(seconds(behind, 1000, 0), 0);
  EXPECT_EQ(seconds(behind, 10, 20), 30);
  TrainingOptions speculates = state;
  speculates.sharding.offload.speculates = true;
  EXPECT_EQ(seconds(speculates, 1000, 0), 3);
  EXPECT_EQ(seconds(speculates, 100, 20), 60 - 25 - 20 + 3) << "beside the last backward only";
  for (TrainingOptions* const apart : {&behind, &speculates}) {
    apart->sharding.offload.values = {"/d"};  // 10 s of the update's 70, behind the step
    EXPECT_EQ(seconds(*apart, 1000, 0), apart == &behind ? 10 : 10 + 3.5);
  }
  TrainingOptions serial = state;
  serial.sharding.overlap = false;
  EXPECT_EQ(seconds(serial, 1000, 1000), 60) << "the control";
  const TrainingOptions values = layout_with({.values = {"/d"}});  // 20 s beside passes, 10 s beside the update
  EXPECT_EQ(seconds(values, 15, 10), 5 + 1);
  cluster.file_bytes_per_second = 0;
  EXPECT_EQ(seconds(layout_with({}), 0, 0), 0);
  expect_refusal([&] { seconds(state, 0, 0); }, "give it \"file_gbs\"");
}

// A memory that state in files alone lets a model into.
TEST(FileSeconds, LetALayoutFitThatMemoryHasNoRoomFor) {
  TrainingCluster cluster = machine_without_memory_time();
  cluster.file_bytes_per_second = 1e9;
  LayoutSpace space{.model = {.layers = 4, .hidden = 64, .heads = 4, .sequence = 16, .vocabulary = 512},
                    .ranks = 2,
                    .global_batch = 4,
                    .memory_bytes = std::int64_t{1} << 40};
  space.tensor = space.pipeline = 1;
  space.sharding.unit_bytes = 1 << 14;
  const auto least_memory = [&](const std::string& directory) {
    LayoutSpace tight = space;
    tight.memory_bytes = 1;
    tight.files_directory = directory;
    return search_layouts(tight, cluster).least_memory;
  };
  EXPECT_LT(least_memory("/d"), least_memory(""));
  space.files_directory = "/d";
  const FoundLayout roomy = search_layouts(space, cluster).best.front();
  EXPECT_TRUE(roomy.layout.sharding.offload.optimizer.directory.empty()) << "memory is faster";
  EXPECT_FALSE(roomy.cost.exposed.contains("files"));
  space.memory_bytes = least_memory("/d");
  const LayoutSearch search = search_layouts(space, cluster);
  ASSERT_FALSE(search.best.empty());
  const FoundLayout& small = search.best.front();
  EXPECT_EQ(small.layout.sharding.offload.optimizer.directory, "/d");
  EXPECT_GT(small.cost.exposed.at("files"), 0);
  EXPECT_LE(small.cost.memory.total(), space.memory_bytes);
  EXPECT_THAT(to_string(small.layout), testing::HasSubstr("in files"));
  space.files_directory = "";
  EXPECT_TRUE(search_layouts(space, cluster).best.empty()) << "the control";
}

}  // namespace
}  // namespace stretto
