#pragma once
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/served_training.hpp"
#include "support/reference_loop.hpp"
#include "support/variables.hpp"

// A training of a few steps through parameter servers, and the one without them that it is compared with.
namespace parity::served {

inline constexpr int steps_of_training = 5;
inline double rate(std::int64_t step) { return 3e-3 / static_cast<double>(1 + step); }

inline const std::map<std::string, OptimizerOptions> optimizers = {
    {"sgd", SGD::Options{.momentum = 0.9, .weight_decay = 0.01}}, {"adamw", AdamW::Options{}}};

inline TrainingOptions options_of(const std::string& optimizer, int workers, DType dtype = DType::f32) {
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
inline std::string difference(const Training& expected, const Training& found) {
  Comparer bits(equal_bits);
  return bits.numbers(expected.losses, found.losses, "losses") +
         bits.pieces(expected.parameters, found.parameters, "values");
}

// Without servers, by the reference loop.
inline Training data_parallel(const TrainingOptions& options, std::size_t delay) {
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

// Some steps of a training that goes on from a checkpoint, or saves one behind them.
struct Leg {
  std::int64_t first = 0, behind = steps_of_training;
  std::string load = {}, save = {};
  bool with_optimizer = true;
};

inline void begin_leg(const Leg& leg, Trainer& trainer) {
  if (leg.load.empty()) return;
  const LoadedCheckpoint loaded =
      load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(leg.load), leg.with_optimizer);
  EXPECT_EQ(loaded.step, leg.first);
  trainer.optimizer().restore(loaded.optimizer_steps);
}

inline void end_leg(const Leg& leg, Trainer& trainer) {
  if (!leg.save.empty()) save_checkpoint(trainer.sharded(), trainer.optimizer(), leg.save, leg.behind, {{"a", "note"}});
}

// Of the last worker, which has asked no server for anything.
inline Training served_leg(TrainingOptions options, const ServerOptions& servers, const Leg& leg) {
  options.servers = servers;
  options.servers.part_elements = 700;
  options.seed = leg.load.empty() ? 1 : 99;  // no initial value of the fresh training may remain
  Training training;
  run_threads(options.mesh.ranks() + servers.count, [&](const Communicator& world) {
    const ServedRanks ranks = split_into_servers(world, options, rate);
    if (ranks.servers->is_server()) return ranks.serve();
    Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
    begin_leg(leg, trainer);
    std::vector<double> losses;
    const TrainedSteps steps{.count = leg.behind - leg.first,
                             .fill_of = [&](std::int64_t i) { return text_of_step(options, leg.first + i); },
                             .lr_of = {},
                             .done = [&](std::int64_t, const StepResult& result) { losses.push_back(result.loss); }};
    if (steps.count > 0) trainer.run(steps);
    end_leg(leg, trainer);
    if (ranks.workers.rank() + 1 == ranks.workers.size()) {
      training = {losses, pieces_of(trainer, trainer.sharded().whole_values())};
    }
    ranks.servers->leave();
  });
  return training;
}

inline Training parallel_leg(TrainingOptions options, const Leg& leg) {
  options.sharding.zero = ZeroStage::optimizer;
  options.seed = leg.load.empty() ? 1 : 99;
  Training training;
  run_threads(options.mesh.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, options.mesh), options);
    begin_leg(leg, trainer);
    std::vector<double> losses;
    for (std::int64_t step = leg.first; step < leg.behind; ++step) {
      losses.push_back(trainer.step(text_of_step(options, step), rate(step)).loss);
    }
    end_leg(leg, trainer);
    const Pieces pieces = pieces_of(trainer, trainer.sharded().whole_values());
    if (world.rank() == 0) training = {losses, pieces};
  });
  return training;
}

// By optimizer.
class InRankOrder : public testing::TestWithParam<std::string> {
 protected:
  const Variable in_rank_order_{"STRETTO_DETERMINISTIC", "1"}, any_algorithm_{"STRETTO_ALGO", {}};
};

inline auto every_optimizer() { return testing::Values("sgd", "adamw"); }
inline std::string name_of(const testing::TestParamInfo<std::string>& its) { return its.param; }

}  // namespace parity::served
