// Checkpoints of a training through parameter servers are those of any job.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "served.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity::served {
namespace {

class ServersCheckpoints : public InRankOrder {};
INSTANTIATE_TEST_SUITE_P(Optimizers, ServersCheckpoints, every_optimizer(), name_of);

// Whoever has saved, and whoever goes on: with the same servers, others, or none.
TEST_P(ServersCheckpoints, CheckpointsAreThoseOfAnyJob) {
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
TEST_P(ServersCheckpoints, OtherConsistenciesSaveWhatAllWorkersHavePushed) {
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

}  // namespace
}  // namespace parity::served
