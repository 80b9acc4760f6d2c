// A training goes on through the loss of a server, and keeps its bits.
#include <gmock/gmock.h>

#include <filesystem>
#include <latch>
#include <set>

#include "served.hpp"
#include "support/temporary_directory.hpp"

namespace parity::served {
namespace {

class ServersLosses : public InRankOrder {};
INSTANTIATE_TEST_SUITE_P(Optimizers, ServersLosses, every_optimizer(), name_of);

// The next server has the values and the optimizer's state, and each push of the step is in them once.
TEST_P(ServersLosses, TrainingKeepsItsBitsThroughTheLossOfAServer) {
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
TEST_P(ServersLosses, TrainingKeepsItsBitsThroughALossWhileWorkersWaitForOneAnother) {
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
TEST_P(ServersLosses, AServerThatWasLeftBehindSpoilsNoCheckpoint) {
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

}  // namespace
}  // namespace parity::served
