// State in files: what lies there, what a step reads and writes of it, and the memory that it takes.
#include <gmock/gmock.h>

#include <atomic>
#include <fstream>

#include "offload.hpp"
#include "stretto/layers/replicated_state.hpp"
#include "stretto/planning/training_memory.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity::offload {
namespace {

TEST(OffloadRatio, IsTheMostThatStaysInMemory) {
  const auto in_file = [](double ratio) {
    return ShardedParameters::Options::InFile{"/scratch", ratio}.in_file({60, 20, 10, 10});
  };
  EXPECT_THAT(in_file(0), testing::ElementsAre(60, 20, 10, 10));
  EXPECT_THAT(in_file(0.3), testing::ElementsAre(60, 0, 0, 10)) << "a unit that is too large keeps none out";
  EXPECT_THAT(in_file(0.8), testing::ElementsAre(0, 0, 10, 10));
  EXPECT_THAT(in_file(1), testing::Each(0));
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

// Muon reads and writes that of units with matrices once more, before the update.
TEST(OffloadTraffic, OfMuonIsThatOfMatricesTwice) {
  const TemporaryDirectory directory;
  for (const int delay : {0, 1}) {
    TrainingOptions options =
        in_files(options_of({{1}, ZeroStage::gradients, Muon::Options()}), directory.path(), {0, 0, 1});
    options.global_batch = 2;
    options.sharding.delay = delay;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      std::vector<bool> has_matrices(trainer.sharded().unit_count());
      std::vector<std::int64_t> bytes(has_matrices.size());
      for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i) {
        const ShardedParameters::Range& range = trainer.sharded().ranges()[i];
        const Parameter& parameter = *trainer.parameters().all()[range.parameter];
        if (!parameter.matrices.empty()) has_matrices[range.unit] = true;
        for (const Tensor& slot : trainer.optimizer().states()[i].slots) bytes[range.unit] += slot ? 4 * slot.size() : 0;
      }
      std::int64_t twice = 0;
      for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
        if (has_matrices[unit]) twice += (bytes[unit] + 4095) / 4096 * 4096;
      }
      EXPECT_GT(twice, 0);
      advance(trainer, 0, 3);
      const OffloadUse state = trainer.optimizer().offloaded().value();
      EXPECT_EQ(state.read, (3 - delay) * (state.bytes + twice));
      EXPECT_EQ(state.written, state.read);
    });
  }
}

// Of the first read behind a step: Muon's, before the update.
class FailingGate : public FileGate {
 public:
  void pass(bool writes, std::int64_t /*offset*/, std::int64_t /*bytes*/) override {
    if (fails && !writes) throw Error(ErrorCode::io, "The disk does not answer.");
  }
  std::atomic<bool> fails = false;
};

TEST(OffloadErrors, OfReadsBeforeAnUpdateAreSentences) {
  const TemporaryDirectory directory;
  for (const std::vector<double>& ratios : {std::vector<double>{0, 1, 1}, {1, 0, 1}}) {  // state, and gradients
    TrainingOptions options = in_files(options_of({{1}, ZeroStage::gradients, Muon::Options()}), directory.path(), ratios);
    options.global_batch = 2;
    const auto gate = std::make_shared<FailingGate>();
    options.sharding.offload.gate = gate;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      advance(trainer, 0, 1);
      gate->fails = true;
      EXPECT_EQ(sentence_of([&] { advance(trainer, 1, 1); }), "The disk does not answer.");
    });
  }
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

// An update behind the next step reads the gradients that it takes, and values that are their own masters, once.
TEST(OffloadTraffic, IsThatOfLateGradientsAndValues) {
  const TemporaryDirectory directory;
  const auto used = [&](DType dtype) {
    TrainingOptions options =
        in_files(options_of({{2}, ZeroStage::values, AdamW::Options(), dtype}), directory.path(), {0, 0, 0});
    options.global_batch = 2;
    options.sharding.delay = 1;
    std::vector<OffloadUse> files;
    run_threads(2, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, Layout{2}.mesh()), options);
      advance(trainer, 0, 4);
      if (world.rank() == 0) files = trainer.sharded().offloaded();
    });
    return files;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const OffloadUse gradients = used(dtype)[1];
    EXPECT_EQ(gradients.written, 4 * gradients.bytes / 2) << "of two places";
    EXPECT_EQ(gradients.read, 3 * gradients.bytes / 2) << "the fourth step's wait";
  }
  const auto values_reads = [&](DType dtype) {
    const OffloadUse values = used(dtype)[0];
    return static_cast<double>(values.read) / static_cast<double>(values.bytes);
  };
  EXPECT_NEAR(values_reads(DType::f32) - values_reads(DType::bf16), 3, 0.1) << "bf16 has masters beside";
}

// Blocks of all files of a rank pass its gate.
class CountingGate : public FileGate {
 public:
  void pass(bool writes, std::int64_t /*offset*/, std::int64_t bytes) override { (writes ? written : read) += bytes; }
  std::atomic<std::int64_t> read = 0, written = 0;
};

TEST(OffloadTraffic, PassesTheGate) {
  const TemporaryDirectory directory;
  run_threads(2, [&](const Communicator& world) {
    TrainingOptions options =
        in_files(options_of({{2}, ZeroStage::values, AdamW::Options(), DType::bf16}), directory.path(), {0, 0, 0});
    const auto gate = std::make_shared<CountingGate>();
    options.sharding.offload.gate = gate;
    Trainer trainer(Mesh(world, Layout{2}.mesh()), options);
    advance(trainer, 0, 2);
    trainer.optimizer().states();  // waits for writes in flight
    std::vector<OffloadUse> files = trainer.sharded().offloaded();
    files.push_back(trainer.optimizer().offloaded().value());
    std::int64_t read = 0, written = 0;
    for (const OffloadUse& each : files) {
      read += each.read;
      written += each.written;
    }
    EXPECT_EQ(gate->read, read);
    EXPECT_EQ(gate->written, written);
    EXPECT_GT(written, 0);
  });
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

}  // namespace
}  // namespace parity::offload
