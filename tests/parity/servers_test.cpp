// Training through parameter servers: with sequential consistency the bits of data parallelism, with exact delays those of
// the reference loop.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/served_training.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"
#include "support/reference_loop.hpp"
#include "support/variables.hpp"

namespace parity {
namespace {

constexpr int steps_of_training = 5;
double rate(std::int64_t step) { return 3e-3 / static_cast<double>(1 + step); }

const std::map<std::string, OptimizerOptions> optimizers = {{"sgd", SGD::Options{.momentum = 0.9, .weight_decay = 0.01}},
                                                            {"adamw", AdamW::Options{}}};

TrainingOptions options_of(const std::string& optimizer, int workers, DType dtype = DType::f32) {
  TrainingOptions options = tiny({workers}, dtype);
  options.mesh = Layout{workers}.mesh();
  options.global_batch = 2L * workers;  // microbatches are accumulated
  options.clip_norm = 0;
  options.optimizer = optimizers.at(optimizer);
  return options;
}

struct Training {
  std::vector<double> losses;
  Pieces parameters;
};

// "" if both have the same bits.
std::string difference(const Training& expected, const Training& found) {
  Comparer bits(equal_bits);
  return bits.numbers(expected.losses, found.losses, "losses") +
         bits.pieces(expected.parameters, found.parameters, "values");
}

// Of each worker.
std::vector<Training> served(TrainingOptions options, int servers, Consistency consistency,
                             const std::function<void(int worker, std::int64_t step)>& disturb = {},
                             const std::function<double(std::int64_t)>& lr_of = rate) {
  options.servers = {.count = servers, .consistency = consistency, .part_elements = 700};
  const int workers = options.mesh[Axis::data];
  std::vector<Training> of(static_cast<std::size_t>(workers));
  run_threads(workers + servers, [&](const Communicator& world) {
    const ServedRanks ranks = split_into_servers(world, options, lr_of);
    if (ranks.servers->is_server()) return ranks.servers->serve();
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

// Without servers, by the reference loop.
Training data_parallel(const TrainingOptions& options, std::size_t delay) {
  Training training;
  run_threads(options.mesh.ranks(), [&](const Communicator& world) {
    TrainingOptions here = options;
    here.sharding.zero = ZeroStage::optimizer;
    Trainer trainer(Mesh(world, here.mesh), here);
    using Weights = std::vector<Tensor>;
    const auto weights = [&] {
      Weights result;
      for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i)
        result.push_back(trainer.optimizer().weights(i).clone());
      return result;
    };
    const auto give = [&](const Weights& values) {
      trainer.sharded().wait_for_values();
      for (std::size_t i = 0; i < values.size(); ++i) trainer.optimizer().weights(i).copy_from(values[i]);
      trainer.optimizer().restore(trainer.optimizer().steps());
    };
    std::vector<double> losses;
    give(delayed_updates(
        weights(), delay, steps_of_training,
        [&](int t, const Weights& at) {
          give(at);
          losses.push_back(trainer.compute_gradients(text_of_step(here, t)).loss);
          return 0;
        },
        [&](int t, const Weights& from, int) {
          give(from);
          trainer.optimizer().step(rate(t), 1);
          return weights();
        }));
    const Pieces pieces = pieces_of(trainer, trainer.sharded().whole_values());
    if (world.rank() == 0) training = {losses, pieces};
  });
  return training;
}

class Servers : public testing::TestWithParam<std::string> {
 protected:
  const Variable in_rank_order_{"STRETTO_DETERMINISTIC", "1"}, any_algorithm_{"STRETTO_ALGO", {}};
};
INSTANTIATE_TEST_SUITE_P(Optimizers, Servers, testing::Values("sgd", "adamw"), [](const auto& its) { return its.param; });

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
  refuses("a delay of -1", [](TrainingOptions& options) { options.servers.consistency.delay = -1; });
}

TEST(ServersRefuse, CheckpointsAndPlans) {
  TrainingOptions options = options_of("adamw", 1);
  options.servers = {.count = 1};
  expect_refusal([&] { plan_stage(options, options.check(), 0); }, "leaves out what 1 servers do");
  run_threads(2, [&](const Communicator& world) {
    const ServedRanks ranks = split_into_servers(world, options, rate);
    if (ranks.servers->is_server()) return ranks.servers->serve();
    Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
    expect_refusal([&] { save_checkpoint(trainer.sharded(), trainer.optimizer(), "nowhere", 1); }, "No checkpoint can be");
    expect_refusal([&] { load_checkpoint(trainer.sharded(), trainer.optimizer(), "nowhere", false); },
                   "nowhere cannot be loaded");
    ranks.servers->leave();
  });
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
}  // namespace parity
