// What the gate of files tells: each rank reads and writes its own share, and updates compute while blocks move.
#include "stretto/overlap/file_gate.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "overlap/offload/offloaded_unit.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

// What has begun, for which others wait.
class Progress {
 public:
  void add(int& count) {
    const std::lock_guard lock(mutex_);
    ++count;
    changed_.notify_all();
  }
  bool wait(const int& count, int wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return count >= wanted; });
  }
  int moves() {
    const std::lock_guard lock(mutex_);
    return reads + writes;
  }
  int reads = 0, writes = 0, updates = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A rank's disk, which counts what it reads. Its reads wait until all ranks have begun one.
class MeetingDisk : public FileGate {
 public:
  MeetingDisk(Progress& progress, int ranks) : progress_(progress), ranks_(ranks) {}
  void pass(bool writes, std::int64_t /*offset*/, std::int64_t bytes) override {
    if (writes) return;
    if (std::exchange(read_, read_ + bytes) == 0) progress_.add(progress_.reads);
    EXPECT_TRUE(progress_.wait(progress_.reads, ranks_)) << "a rank reads behind another one";
  }
  std::int64_t read() const { return read_; }

 private:
  Progress& progress_;
  int ranks_;
  std::int64_t read_ = 0;  // from one thread
};

// Bytes that each rank has read for a gather of a unit, all ranks at the same time.
std::vector<std::int64_t> gathered(int ranks, std::int64_t elements) {
  const TemporaryDirectory directory;
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks));
  Progress progress;
  run_threads(ranks, [&](const Communicator& world) {
    const auto disk = std::make_shared<MeetingDisk>(progress, ranks);
    UnitFile file(directory.path(), {elements / ranks * 4}, {.name = "values", .gate = disk});
    OffloadedUnit unit(world, world, std::vector<Shape>{{elements}}, DType::f32, DType::f32, {.stage = ZeroStage::values},
                       {&file, nullptr, 0});
    unit.gather(computation()).wait();
    bytes[static_cast<std::size_t>(world.rank())] = disk->read();
  });
  return bytes;
}

TEST(FileGate, TellsThatEachRankReadsItsShare) {
  constexpr std::int64_t elements = std::int64_t{1} << 20;
  EXPECT_THAT(gathered(1, elements), testing::ElementsAre(4 * elements));
  EXPECT_THAT(gathered(2, elements), testing::ElementsAre(2 * elements, 2 * elements));
}

TEST(TokenGate, LetsBytesThroughAtItsRate) {
  TokenGate gate(100e6);
  const double begin = now_seconds();
  for (const bool writes : {false, true}) gate.pass(writes, 0, 1000000);
  EXPECT_GE(now_seconds() - begin, 0.02);
}

TEST(TokenGate, RefusesARateOfNothing) {
  EXPECT_THAT(sentence_of([] { TokenGate(0); }), testing::HasSubstr("cannot move 0 bytes a second"));
}

constexpr int number_of_units = 6;

// Read i+1 and write i-1 begin when update i has begun.
class HoldingGate : public FileGate {
 public:
  HoldingGate(Progress& progress, bool holds) : progress_(progress), holds_(holds) {}
  void pass(bool writes, std::int64_t /*offset*/, std::int64_t /*bytes*/) override {
    const int wanted = writes ? writes_++ + 2 : reads_++;
    if (holds_ && wanted <= number_of_units) {
      EXPECT_TRUE(progress_.wait(progress_.updates, wanted)) << "nothing computes meanwhile";
    }
    progress_.add(writes ? progress_.writes : progress_.reads);
  }

 private:
  Progress& progress_;
  bool holds_;
  int reads_ = 0, writes_ = 0;  // each from one thread
};

// Update i ends when read i+1 and write i-1 have begun; or at once.
class WaitingOptimizer : public Optimizer {
 public:
  WaitingOptimizer(ShardedParameters& parameters, Progress& progress, bool waits)
      : Optimizer(parameters, {.name = "waiting", .slots = {{"m"}}}), progress_(progress), waits_(waits) {}
  int moves_beside = 0;  // that have begun during an update

 private:
  void update(const ShardedParameters::Range& /*range*/, const Parameter& /*parameter*/, const State& state,
              const Step& /*step*/) override {
    const int before = progress_.moves();
    const int number = progress_.updates;
    progress_.add(progress_.updates);
    if (waits_) {
      EXPECT_TRUE(progress_.wait(progress_.reads, std::min(number + 2, number_of_units)));
      EXPECT_TRUE(progress_.wait(progress_.writes, number));
    }
    state.slots[0].set(0, state.slots[0].at(0) + 1);
    moves_beside += progress_.moves() - before;
  }
  Progress& progress_;
  bool waits_;
};

// Returns the moves that have begun during updates of one step.
int moves_beside_updates(bool overlap) {
  const TemporaryDirectory directory;
  int beside = 0;
  run_threads(1, [&](const Communicator& world) {
    Progress progress;
    const Mesh mesh(world, {});
    Parameters parameters;
    for (int i = 0; i < number_of_units; ++i) {
      parameters.used_together({&parameters.add(Parameter::whole("p" + std::to_string(i), {1024}, token_axes, {}))});
    }
    ShardedParameters::Options options;
    options.unit_bytes = 4096;
    options.overlap = overlap;
    options.offload = {.optimizer = {directory.path()}, .gate = std::make_shared<HoldingGate>(progress, overlap)};
    ShardedParameters sharded(parameters, mesh, options);
    ASSERT_EQ(sharded.unit_count(), static_cast<std::size_t>(number_of_units));
    WaitingOptimizer optimizer(sharded, progress, overlap);
    sharded.begin_step();
    for (const auto& used : parameters.used()) const InUse in_use(sharded, *used, Pass::backward);
    sharded.end_microbatch();
    sharded.finish_sums();
    optimizer.step(1, 1);
    for (const Optimizer::State& state : optimizer.states()) EXPECT_EQ(state.slots[0].at(0), 1);
    EXPECT_EQ(progress.reads, number_of_units);
    EXPECT_EQ(progress.writes, number_of_units);
    beside = optimizer.moves_beside;
  });
  return beside;
}

TEST(FileGate, TellsThatBlocksMoveBesideUpdates) {
  EXPECT_EQ(moves_beside_updates(true), 2 * (number_of_units - 1));
  EXPECT_EQ(moves_beside_updates(false), 0) << "the control: without overlap each read and write is waited for";
}

}  // namespace
}  // namespace stretto
