// Training through parameter servers: with sequential consistency the bits of data parallelism, with exact delays those of
// the reference loop.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <thread>

#include "served.hpp"
#include "support/error.hpp"

namespace parity::served {
namespace {

// Of each worker.
std::vector<Training> served(TrainingOptions options, int servers, Consistency consistency,
                             const std::function<void(int worker, std::int64_t step)>& disturb = {},
                             const std::function<double(std::int64_t)>& lr_of = rate) {
  options.servers = {.count = servers, .consistency = consistency, .part_elements = 700};
  const int workers = options.mesh[Axis::data];
  std::vector<Training> of(static_cast<std::size_t>(workers));
  run_threads(workers + servers, [&](const Communicator& world) {
    const ServedRanks ranks = split_into_servers(world, options, lr_of);
    if (ranks.servers->is_server()) return ranks.serve();
    Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
    Training& its = of[static_cast<std::size_t>(world.rank())];
    for (const std::int64_t first : {0, 2}) {  // workers meet between
      trainer.run({.count = first == 0 ? 2 : steps_of_training - 2,
                   .fill_of =
                       [&](std::int64_t i) {
                         if (disturb) disturb(world.rank(), first + i);
                         return text_of_step(options, first + i);
                       },
                   .lr_of = {},
                   .done = [&](std::int64_t, const StepResult& result) { its.losses.push_back(result.loss); }});
    }
    its.parameters = pieces_of(trainer, trainer.sharded().whole_values());
    ranks.servers->leave();
  });
  return of;
}

class Servers : public InRankOrder {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Servers, every_optimizer(), name_of);

TEST_P(Servers, SequentialHasTheBitsOfDataParallelism) {
  for (const int workers : {2, 3}) {
    TrainingOptions options = options_of(GetParam(), workers);
    const Training expected = data_parallel(options, 0);
    for (const int servers : {1, 2, 3}) {
      for (const Training& its : served(options, servers, Consistency::sequential())) {
        EXPECT_EQ(difference(expected, its), "") << workers << " workers, " << servers << " servers";
      }
    }
    options.sharding.overlap = false;
    EXPECT_EQ(difference(expected, served(options, 2, Consistency::sequential()).front()), "") << "without overlap";
    EXPECT_NE(difference(expected, served(options, 2, Consistency::exact(1)).front()), "") << "a control: late values";
    const auto earlier = [](std::int64_t step) { return rate(step + 1); };
    EXPECT_NE(difference(expected, served(options, 2, Consistency::sequential(), {}, earlier).front()), "")
        << "a control: the rate of another step";
  }
}

TEST_P(Servers, SequentialHasTheBitsOfDataParallelismInF64) {
  const TrainingOptions options = options_of(GetParam(), 2, DType::f64);
  EXPECT_EQ(difference(data_parallel(options, 0), served(options, 2, Consistency::sequential()).front()), "");
}

void disturb(int worker, std::int64_t step) {
  if ((worker + step) % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

// Between two runs workers meet, and the pipeline of late gradients goes on.
TEST_P(Servers, ExactDelaysHaveTheBitsOfTheReferenceLoop) {
  const TrainingOptions options = options_of(GetParam(), 2);
  for (const int delay : {1, 2}) {
    const Training expected = data_parallel(options, static_cast<std::size_t>(delay));
    for (const Training& its : served(options, 2, Consistency::exact(delay), disturb)) {
      EXPECT_EQ(difference(expected, its), "") << "delay " << delay;
    }
  }
}

TEST_P(Servers, EventualWithOneWorkerIsTheLoop) {
  const TrainingOptions options = options_of(GetParam(), 1);
  EXPECT_EQ(difference(data_parallel(options, 0), served(options, 2, Consistency::eventual()).front()), "");
}

TEST_P(Servers, WorkersThatAreApartMeetAtTheSameValues) {
  for (const Consistency consistency : {Consistency::bounded(2), Consistency::eventual()}) {
    const std::vector<Training> of = served(options_of(GetParam(), 3), 2, consistency, disturb);
    ASSERT_EQ(of.front().losses.size(), steps_of_training);
    EXPECT_LT(of.front().losses.back(), of.front().losses.front());
    for (const Training& its : of) EXPECT_EQ(difference(of.front(), its), "");
  }
}

TEST(ServersRefuse, WhatNobodyHas) {
  const auto refuses = [](const std::string& words, const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = options_of("adamw", 2);
    options.servers = {.count = 1};
    options.check();
    change(options);
    expect_refusal([&] { options.check(); }, words);
  };
  refuses("cannot be clipped to a norm of 1", [](TrainingOptions& options) { options.clip_norm = 1; });
  refuses("by AdamW or SGD, and muon", [](TrainingOptions& options) { options.optimizer = Muon::Options{}; });
  refuses("in fp32 or fp64, not in bf16", [](TrainingOptions& options) { options.sharding.dtype = DType::bf16; });
  refuses("leave ZeRO stage 3", [](TrainingOptions& options) { options.sharding.zero = ZeroStage::values; });
  refuses("leave ZeRO stage 1, a delay of 1", [](TrainingOptions& options) { options.sharding.delay = 1; });
  refuses("divides it over 2 ranks", [](TrainingOptions& options) { options.mesh[Axis::tensor] = 2; });
  refuses("A momentum of 2", [](TrainingOptions& options) { options.optimizer = SGD::Options{.momentum = 2}; });
  refuses("leave adapters", [](TrainingOptions& options) { options.adapters.rank = 2; });
  refuses("1 servers cannot keep 1 copies", [](TrainingOptions& options) { options.servers.copies = 1; });
  refuses("a delay of -1", [](TrainingOptions& options) { options.servers.consistency.delay = -1; });
}

TEST(ServersRefuse, TrainersAndRanksThatDoNotFit) {
  run_threads(2, [](const Communicator& world) {
    TrainingOptions options = options_of("adamw", 2);
    options.servers = {.count = 1};
    expect_refusal([&] { split_into_servers(world, options, rate); }, "2 workers and 1 servers are not 2 ranks");
    expect_refusal([&] { Trainer(Mesh(world, options.mesh), options); }, "takes a server set");
  });
}

}  // namespace
}  // namespace parity::served
