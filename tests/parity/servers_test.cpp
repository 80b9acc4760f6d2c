// Training through parameter servers: with sequential consistency the bits of data parallelism, with exact delays those of
// the reference loop.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <set>
#include <thread>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/served_training.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"
#include "support/reference_loop.hpp"
#include "support/temporary_directory.hpp"
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
  refuses("1 servers cannot keep 1 copies", [](TrainingOptions& options) { options.servers.copies = 1; });
  refuses("a delay of -1", [](TrainingOptions& options) { options.servers.consistency.delay = -1; });
}

// Some steps of a training that goes on from a checkpoint, or saves one behind them.
struct Leg {
  std::int64_t first = 0, behind = steps_of_training;
  std::string load = {}, save = {};
  bool with_optimizer = true;
};

void begin_leg(const Leg& leg, Trainer& trainer) {
  if (leg.load.empty()) return;
  const LoadedCheckpoint loaded =
      load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(leg.load), leg.with_optimizer);
  EXPECT_EQ(loaded.step, leg.first);
  trainer.optimizer().restore(loaded.optimizer_steps);
}

void end_leg(const Leg& leg, Trainer& trainer) {
  if (!leg.save.empty()) save_checkpoint(trainer.sharded(), trainer.optimizer(), leg.save, leg.behind, {{"a", "note"}});
}

// Of the last worker, which has asked no server for anything.
Training served_leg(TrainingOptions options, const ServerOptions& servers, const Leg& leg) {
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

Training parallel_leg(TrainingOptions options, const Leg& leg) {
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

// Whoever has saved, and whoever goes on: with the same servers, others, or none.
TEST_P(Servers, CheckpointsAreThoseOfAnyJob) {
  const TrainingOptions options = options_of(GetParam(), 2);
  const ServerOptions two{.count = 2};
  const TemporaryDirectory by_servers, by_none;
  served_leg(options, two, {.behind = 2, .save = by_servers.path()});
  parallel_leg(options, {.behind = 2, .save = by_none.path()});
  Training expected = parallel_leg(options, {});
  expected.losses.erase(expected.losses.begin(), expected.losses.begin() + 2);
  for (const std::string& saved : {by_servers.path(), by_none.path()}) {
    const Leg rest{.first = 2, .load = saved};
    EXPECT_EQ(difference(expected, parallel_leg(options, rest)), "") << "without servers";
    for (const int servers : {1, 2, 3, 7}) {
      EXPECT_EQ(difference(expected, served_leg(options, {.count = servers}, rest)), "") << servers << " servers";
    }
    Leg values = rest;
    values.with_optimizer = false;
    EXPECT_NE(difference(expected, served_leg(options, two, values)), "") << "a control: the rate and state of step 0";
  }
  EXPECT_EQ(read_notes(find_checkpoint(by_servers.path())).notes.at("a"), "note");
}

// Workers that are apart meet, and what is saved has all their steps: it is what the next run begins from.
TEST_P(Servers, OtherConsistenciesSaveWhatAllWorkersHavePushed) {
  const TrainingOptions options = options_of(GetParam(), 2);
  for (const Consistency consistency : {Consistency::bounded(2), Consistency::exact(1), Consistency::eventual()}) {
    const TemporaryDirectory saved;
    const Training before =
        served_leg(options, {.count = 2, .consistency = consistency}, {.behind = 3, .save = saved.path()});
    const Training found =
        served_leg(options, {.count = 1, .consistency = consistency}, {.first = 3, .behind = 3, .load = saved.path()});
    EXPECT_EQ(difference({{}, before.parameters}, found), "");
    const Training rest = served_leg(options, {.count = 1, .consistency = consistency}, {.first = 3, .load = saved.path()});
    EXPECT_LT(rest.losses.back(), before.losses.front());
  }
}

// The next server has the values and the optimizer's state, and each push of the step is in them once.
TEST_P(Servers, TrainingKeepsItsBitsThroughTheLossOfAServer) {
  struct Killed {};
  TrainingOptions options = options_of(GetParam(), 2);
  const Training expected = data_parallel(options, 0);
  options.servers = {.count = 2, .part_elements = 700, .copies = 1};
  for (const int lost : {2, 3}) {
    const TemporaryDirectory saved;
    run_threads(4, [&](const Communicator& world) {
      const auto lr_of = [&](std::int64_t step) {  // called by the servers
        if (world.rank() == lost && step == 2) throw Killed();
        return rate(step);
      };
      const ServedRanks ranks = split_into_servers(world, options, lr_of);
      if (ranks.servers->is_server()) {
        try {
          return ranks.serve();
        } catch (const Killed&) {
          return world.job().abort("it is killed.");
        }
      }
      Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
      Training found;
      trainer.run({.count = steps_of_training,
                   .fill_of = [&](std::int64_t i) { return text_of_step(options, i); },
                   .lr_of = {},
                   .done = [&](std::int64_t, const StepResult& result) { found.losses.push_back(result.loss); }});
      found.parameters = pieces_of(trainer, trainer.sharded().whole_values());
      EXPECT_EQ(difference(expected, found), "") << lost;
      save_checkpoint(trainer.sharded(), trainer.optimizer(), saved.path(), steps_of_training);
      EXPECT_EQ(ranks.servers->ranks().size(), 3) << "the control: there was a loss";
      ranks.servers->leave();
    });
    Training values = parallel_leg(options_of(GetParam(), 2), {.first = 5, .behind = 5, .load = saved.path()});
    EXPECT_EQ(difference({{}, expected.parameters}, values), "") << "what the one that is left has saved";
  }
}

// A server dies over a question, for which one worker waits, and the other for that one: in a validation, a save and a load.
TEST_P(Servers, TrainingKeepsItsBitsThroughALossWhileWorkersWaitForOneAnother) {
  struct Killed {};
  const TrainingOptions plain = options_of(GetParam(), 2);
  const Training expected = data_parallel(plain, 0);
  const std::vector<double> rest(expected.losses.begin() + 2, expected.losses.end());
  const TemporaryDirectory begun;
  parallel_leg(plain, {.behind = 2, .save = begun.path()});
  TrainingOptions options = plain;
  options.servers = {.count = 2, .part_elements = 700, .copies = 1};
  for (const std::string asked : {"validation", "write", "values"}) {
    const TemporaryDirectory saved;
    run_threads(4, [&](const Communicator& world) {
      const ServedRanks ranks = split_into_servers(world, options, rate);
      if (ranks.servers->is_server()) {
        const auto answer = [&](const ServerSet::Question& question) {
          if (world.rank() == 3 && question.text.starts_with(asked)) throw Killed();
          return ranks.answer(question);
        };
        try {
          return ranks.servers->serve(answer);
        } catch (const Killed&) {
          return world.job().abort("it is killed.");
        }
      }
      Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
      Training found;
      const auto train = [&](std::int64_t first, std::int64_t behind) {
        trainer.run({.count = behind - first,
                     .fill_of = [&](std::int64_t i) { return text_of_step(options, first + i); },
                     .lr_of = {},
                     .done =
                         [&](std::int64_t i, const StepResult& result) {
                           if (first + i >= 2) found.losses.push_back(result.loss);
                         }});
      };
      if (asked == "values") {
        begin_leg({.first = 2, .load = begun.path()}, trainer);
      } else {
        train(0, 2);
      }
      if (world.rank() == 0) ranks.servers->ask("validation");
      trainer.evaluate(text_of_step(options, 9), options.global_batch);
      save_checkpoint(trainer.sharded(), trainer.optimizer(), saved.path(), 2);
      EXPECT_EQ(ranks.servers->ranks().size(), 3) << "the control: there was a loss";
      train(2, steps_of_training);
      found.parameters = pieces_of(trainer, trainer.sharded().whole_values());
      EXPECT_EQ(difference({rest, expected.parameters}, found), "") << asked;
      ranks.servers->leave();
    });
    EXPECT_EQ(difference({rest, expected.parameters}, parallel_leg(plain, {.first = 2, .load = saved.path()})), "") << asked;
  }
}

// The others believe that a server is lost, and another one has its number; it then writes its shard, late.
TEST_P(Servers, AServerThatWasLeftBehindSpoilsNoCheckpoint) {
  struct LeftBehind {};
  const TrainingOptions plain = options_of(GetParam(), 2);
  TrainingOptions options = plain;
  options.servers = {.count = 3, .part_elements = 700, .copies = 1};
  const TemporaryDirectory saved;
  std::latch written(2), late(1);
  std::string own;
  run_threads(5, [&](const Communicator& world) {
    const ServedRanks ranks = split_into_servers(world, options, rate);
    world.job().set_timeout(2);
    if (ranks.servers->is_server()) {
      const auto answer = [&](const ServerSet::Question& question) {
        if (!question.text.starts_with("write")) return ranks.answer(question);
        if (world.rank() == 2) {
          world.job().abort("it looks dead.");
          written.wait();
          own = ranks.answer(question);
          late.count_down();
          throw LeftBehind();
        }
        const std::string its = ranks.answer(question);
        if (ranks.servers->ranks().size() == 5) return its;  // it will be asked again
        written.count_down();
        late.wait();
        return its;
      };
      try {
        return ranks.servers->serve(answer);
      } catch (const LeftBehind&) {
        return;
      }
    }
    Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
    trainer.run({.count = 2, .fill_of = [&](std::int64_t i) { return text_of_step(options, i); }, .lr_of = {}, .done = {}});
    save_checkpoint(trainer.sharded(), trainer.optimizer(), saved.path(), 2);
    EXPECT_EQ(ranks.servers->ranks().size(), 4);
    ranks.servers->leave();
  });
  EXPECT_EQ(own.find('x'), std::string::npos) << "the control: it wrote: " << own;
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(find_checkpoint(saved.path()))) {
    files.insert(entry.path().filename());
  }
  EXPECT_THAT(files, testing::ElementsAre("index.json", "rank_00000.safetensors", "rank_00001.safetensors"));
  Training expected = data_parallel(plain, 0);
  expected.losses.erase(expected.losses.begin(), expected.losses.begin() + 2);
  EXPECT_EQ(difference(expected, parallel_leg(plain, {.first = 2, .load = saved.path()})), "");
}

TEST(ServersSave, RemovesWhatServersThatWereLeftBehindHaveWrittenLate) {
  const TrainingOptions options = options_of("sgd", 2);
  const TemporaryDirectory saved;
  served_leg(options, {.count = 2}, {.behind = 1, .save = saved.path()});
  const std::filesystem::path earlier = find_checkpoint(saved.path());
  const std::filesystem::path late = earlier / ".served.0123456789abcdef.3", other = earlier / ".mine";
  for (const std::filesystem::path& file : {late, other}) std::ofstream(file) << "text";
  served_leg(options, {.count = 2}, {.behind = 2, .save = saved.path()});
  EXPECT_NE(find_checkpoint(saved.path()), earlier);
  EXPECT_FALSE(std::filesystem::exists(late));
  EXPECT_TRUE(std::filesystem::exists(other)) << "the control";
}

// All workers end by it: the first by the servers' sentence, the others by one that names the first.
TEST(ServersRefuse, CheckpointsThatCannotBeReadOrWritten) {
  const TrainingOptions options = options_of("adamw", 2);
  const TemporaryDirectory saved;
  served_leg(options, {.count = 2}, {.behind = 1, .save = saved.path()});
  const std::string checkpoint = find_checkpoint(saved.path()), shard = checkpoint + "/rank_00001.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  TrainingOptions with = options;
  with.servers = {.count = 2};
  expect_refusal([&] { plan_stage(with, with.check(), 0); }, "leaves out what 2 servers do");
  run_threads(4, [&](const Communicator& world) {
    const ServedRanks ranks = split_into_servers(world, with, rate);
    if (ranks.servers->is_server()) return ranks.serve();
    Trainer trainer(Mesh(ranks.workers, with.mesh), with, {}, ranks.servers.get());
    const auto ends = [&](const std::string& what, const std::function<void()>& does) {
      const bool is_first = world.rank() == 0;
      EXPECT_THAT(sentence_of(is_first ? ErrorCode::io : ErrorCode::peer_gave_up, does),
                  testing::HasSubstr(is_first ? "rank_00001.safetensors" : "Rank 0 could not " + what));
    };
    ends("have the servers read", [&] {
      trainer.optimizer().restore(load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, true).optimizer_steps);
    });
    trainer.run({.count = 1, .fill_of = [&](std::int64_t i) { return text_of_step(with, i); }, .lr_of = {}, .done = {}});
    ends("save the checkpoint", [&] { save_checkpoint(trainer.sharded(), trainer.optimizer(), shard, 1); });
    const auto in_background = [&] {
      CheckpointSaver(trainer.sharded(), trainer.optimizer(), saved.path(), {.in_background = true});
    };
    expect_refusal(in_background, "in the background: parameter servers");
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
