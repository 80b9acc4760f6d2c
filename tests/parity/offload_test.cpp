// Optimizer state in files: training has the bits of training with state in memory.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/layers/replicated_state.hpp"
#include "stretto/planning/training_memory.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

TrainingOptions offloaded(TrainingOptions options, const std::string& directory, double ratio = 0) {
  options.sharding.offload.optimizer = {directory, ratio};
  return options;
}

struct OffloadCell {
  Layout layout;
  ZeroStage zero;
  OptimizerOptions optimizer = AdamW::Options();
  DType dtype = DType::f32;
  int hpz_size = 1;
  QuantizedFormat qwz = QuantizedFormat::none, qgz = QuantizedFormat::none;
};

TrainingOptions options_of(const OffloadCell& cell) {
  TrainingOptions options = tiny(cell.layout, cell.dtype);
  options.sharding.zero = cell.zero;
  options.optimizer = cell.optimizer;
  options.sharding.hpz_size = cell.hpz_size;
  options.sharding.qwz = cell.qwz;
  options.sharding.qgz = cell.qgz;
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

// Values, gradients and state, in all combinations of one layout; and all three in others.
TrainingOptions in_files(TrainingOptions options, const std::string& directory, const std::vector<double>& ratios) {
  const auto at = [&](double ratio) {
    return ratio < 1 ? ShardedParameters::Options::InFile{directory, ratio} : ShardedParameters::Options::InFile{};
  };
  options.sharding.offload = {.optimizer = at(ratios[0]), .gradients = at(ratios[1]), .values = at(ratios[2])};
  return options;
}

TEST(OffloadRatio, IsTheMostThatStaysInMemory) {
  const auto in_file = [](double ratio) {
    return ShardedParameters::Options::InFile{"/scratch", ratio}.in_file({60, 20, 10, 10});
  };
  EXPECT_THAT(in_file(0), testing::ElementsAre(60, 20, 10, 10));
  EXPECT_THAT(in_file(0.3), testing::ElementsAre(60, 0, 0, 10)) << "a unit that is too large keeps none out";
  EXPECT_THAT(in_file(0.8), testing::ElementsAre(0, 0, 10, 10));
  EXPECT_THAT(in_file(1), testing::Each(0));
}

TEST(OffloadCombinations, HaveTheBitsOfMemory) {
  const TemporaryDirectory directory;
  for (const int ranks : {1, 2}) {
    const TrainingOptions options = options_of({{ranks}, ZeroStage::values, AdamW::Options(), DType::f32});
    const std::vector<Trace> expected = train({ranks}, options);
    for (const double state : {0.0, 1.0}) {
      for (const double gradients : {0.0, 0.4, 1.0}) {
        for (const double values : {0.0, 0.4, 1.0}) {
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
INSTANTIATE_TEST_SUITE_P(Cells, OffloadOfAll, testing::ValuesIn(all_cells));

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
  for (const OffloadCell& cell : cells) {
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

// In a pipeline, values that lie in files are gathered by each microbatch, and a plan counts them so.
TEST(OffloadTraffic, InPipelinesIsPlanned) {
  const TemporaryDirectory directory;
  const Layout layout{2, 1, 2};
  TrainingOptions options = options_of({layout, ZeroStage::values, AdamW::Options(), DType::f32});
  options.global_batch = 8;
  constexpr std::int64_t steps = 2;
  const auto planned_and_sent = [&](double ratio) {
    options.sharding.offload.values = {directory.path(), ratio};
    std::int64_t planned = 0, sent = 0;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, layout.mesh()), options);
      const auto values = [&] {
        std::int64_t bytes = 0;
        for (const Record& record : world.job().ledger().records()) {
          if (record.tag == "parameters") bytes += static_cast<std::int64_t>(record.bytes_sent);
        }
        return bytes;
      };
      const std::int64_t before = values();
      advance(trainer, 0, steps);
      if (world.rank() != 0) return;
      sent = (values() - before) / steps;
      const ShardedParameters& sharded = trainer.sharded();
      const std::int64_t microbatches = trainer.options().microbatches();
      const auto traffic = [&](ZeroStage zero) {
        ShardedParameters::Options its = sharded.options();
        its.zero = zero;
        return state_traffic(sharded.parameters(), layout.mesh(), its, microbatches).at("dp");
      };
      planned = traffic(ZeroStage::values) - traffic(ZeroStage::gradients);
    });
    return std::pair(planned, sent);
  };
  const auto [more_planned, sent] = planned_and_sent(0);
  const auto [none_planned, sent_in_memory] = planned_and_sent(1);
  EXPECT_EQ(none_planned, 0) << "one gather, as at stage 2";
  EXPECT_GT(more_planned, 0);
  EXPECT_GT(sent, sent_in_memory);
  EXPECT_LE(sent - sent_in_memory, more_planned);
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

// Behind computation an update moves as much. One that begins before the norm is known, too, and once more where it is taken
// back: each time to the other place of two.
TEST(OffloadTraffic, IsThatOfUpdatesBehindComputation) {
  const TemporaryDirectory directory;
  const auto state_and_use = [&](int delay, bool speculates, double clip_norm) {
    TrainingOptions options = offloaded(options_of({{1}, ZeroStage::none, AdamW::Options(), DType::bf16}), directory.path());
    options.sharding.delay = delay;
    options.sharding.offload.speculates = speculates;
    options.clip_norm = clip_norm;
    OffloadUse use;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      advance(trainer, 0, 3);
      use = trainer.optimizer().offloaded().value();
    });
    return use;
  };
  const OffloadUse plain = state_and_use(0, false, 0), late = state_and_use(1, false, 0);
  EXPECT_EQ(late.bytes, plain.bytes);
  EXPECT_EQ(late.read, 2 * plain.bytes) << "the third step's is not made";
  EXPECT_EQ(late.written, 2 * plain.bytes);
  const OffloadUse kept = state_and_use(0, true, 0), taken_back = state_and_use(0, true, 1e-9);
  EXPECT_EQ(kept.bytes, 2 * plain.bytes);
  EXPECT_EQ(kept.read, 3 * plain.bytes);
  EXPECT_EQ(kept.written, 3 * plain.bytes);
  EXPECT_EQ(taken_back.read, 6 * plain.bytes);
  EXPECT_EQ(taken_back.written, 6 * plain.bytes);
}

// Gradients are written and, but for the first time, read in each microbatch; values are read for each gather.
TEST(OffloadTraffic, OfGradientsAndValuesIsThatOfSumsAndGathers) {
  const TemporaryDirectory directory;
  constexpr int steps = 3, microbatches = 2;
  for (const int ranks : {1, 2}) {
    const TrainingOptions options = options_of({{ranks}, ZeroStage::values, AdamW::Options(), DType::bf16});
    run_threads(ranks, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, Layout{ranks}.mesh()), in_files(options, directory.path(), {0, 0, 0}));
      EXPECT_EQ(memory_use(MemoryKind::values).bytes + memory_use(MemoryKind::gradients).bytes, 0U);
      advance(trainer, 0, steps);
      const std::vector<OffloadUse> files = trainer.sharded().offloaded();
      ASSERT_EQ(files.size(), 2U);
      const OffloadUse &values = files[0], &gradients = files[1];
      const std::int64_t pages = 4096 * static_cast<std::int64_t>(trainer.sharded().unit_count());
      const std::int64_t elements = trainer.parameters().global_elements() / ranks;
      EXPECT_THAT(values.bytes, testing::AllOf(testing::Ge(2 * elements), testing::Lt(2 * elements + pages)));
      EXPECT_THAT(gradients.bytes, testing::AllOf(testing::Ge(4 * elements), testing::Lt(4 * elements + pages)));
      EXPECT_EQ(gradients.written, steps * microbatches * gradients.bytes);
      EXPECT_EQ(gradients.read, steps * microbatches * gradients.bytes);
      EXPECT_EQ(values.written, steps * values.bytes);
      // Forward and backward of each microbatch, the embedding at the model's end once more, but for units that stay between
      // two uses; and the update.
      EXPECT_LE(values.read, steps * (3 * microbatches + 1) * values.bytes);
      EXPECT_GE(values.read, steps * (microbatches + 1) * values.bytes);
    });
  }
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

// The bytes of mapped scratch files in the directory that are in this process's memory.
std::int64_t mapped_bytes(const std::string& directory) {
  std::ifstream maps("/proc/self/smaps");
  bool in_file = false;
  std::int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("Rss:")) {
      if (in_file) bytes += 1024 * std::stoll(line.substr(4));
      in_file = false;
    } else if (line.find(directory) != std::string::npos) {
      in_file = true;
    }
  }
  return bytes;
}

// Whoever goes through all state behind an update gives it back: DiLoCo, 1-bit Adam, copies of the state in memory.
TEST(OffloadMemory, IsGivenBackByWhoeverGoesThroughTheState) {
  const TemporaryDirectory directory;
  const auto mapped_behind = [&](int ranks, TrainingOptions options, bool copies, bool keeps = false) {
    options = offloaded(options, directory.path());
    std::int64_t most = 0, all = 0;
    run_threads(ranks, [&](const Communicator& world) {
      std::optional<ReplicaGroups> groups;
      if (options.diloco.any()) groups = split_into_replicas(world, options.diloco.replicas);
      const Layout layout{groups ? 1 : ranks};
      Trainer trainer(Mesh(groups ? groups->replica : world, layout.mesh()), options,
                      groups ? groups->peers : Communicator());
      ReplicatedState state;
      if (copies) state.begin(world);
      for (int step = 0; step < 4; ++step) {
        advance(trainer, step, 1);
        if (copies) state.keep(trainer.sharded(), trainer.optimizer(), step + 1, {});
        if (keeps) {
          double sum = 0;  // the control
          for (const Optimizer::State& each : trainer.optimizer().states()) {
            for (const Tensor& slot : each.slots) {
              if (slot) sum += kernels::sum_of_squares(slot);
            }
          }
          EXPECT_GE(sum, 0);
        }
        world.barrier(Stream::inline_()).wait();
        if (world.rank() == 0) most = std::max(most, mapped_bytes(directory.path()));
        world.barrier(Stream::inline_()).wait();
      }
      if (world.rank() == 0) all = ranks * trainer.optimizer().offloaded()->bytes;
      if (copies) state.wait();
    });
    return static_cast<double>(most) / static_cast<double>(all);
  };
  TrainingOptions options = options_of({{2}, ZeroStage::optimizer});
  EXPECT_LT(mapped_behind(2, options, false), 0.3);
  EXPECT_LT(mapped_behind(2, options, true), 0.3) << "copies of the state";
  EXPECT_GT(mapped_behind(2, options, true, true), 0.6) << "the control";
  options.optimizer = OneBitAdam::Options{.freeze_step = 2};
  EXPECT_LT(mapped_behind(2, options, false), 0.3) << "1-bit Adam";
  options.optimizer = AdamW::Options();
  options.diloco = {.replicas = 2, .sync_every = 2};
  EXPECT_LT(mapped_behind(2, options, false), 0.3) << "DiLoCo";
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
}  // namespace parity
