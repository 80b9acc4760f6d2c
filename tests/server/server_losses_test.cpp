// A server or a worker is lost: the pulls, questions and meetings of the others, and who is not waited for.
#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <numeric>

#include "server/dying_servers.hpp"
#include "stretto/launch.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

// The first server of the part, or of half of the keys, is lost while a pull is under way: the pull still reads nothing of
// the push behind it.
TEST(ServerLosses, APullReadsNoLaterPushThroughALoss) {
  std::vector<std::uint64_t> keys(64);
  std::iota(keys.begin(), keys.end(), 0);
  for (const Consistency consistency : consistencies) {
    for (const bool is_sparse : {false, true}) {
      std::latch pulled(1);
      run_threads(3, [&](const Communicator& world) {
        ServedTable table{.name = "counts", .elements = 64, .dtype = DType::i64, .update = server_functions::sum()};
        if (is_sparse) table.elements = 0, table.width = 1;
        ServerSet set(world, {table}, {.servers = 2, .consistency = consistency, .copies = 1});
        if (world.rank() == (is_sparse ? 1 : set.server_of(0, 0))) {
          pulled.wait();
          return world.job().abort("it is killed.");
        }
        if (set.is_server()) return set.serve();
        const Tensor ones({64, 1}, DType::i64), found({64, 1}, DType::i64);
        std::fill_n(ones.data<std::int64_t>(), 64, 1);
        const auto pull = [&] { return is_sparse ? set.pull(0, keys, found) : set.pull(0, found); };
        const auto sum = [&] {
          return std::accumulate(found.data<std::int64_t>(), found.data<std::int64_t>() + 64, std::int64_t{0});
        };
        const ServerSet::Pending before = pull();
        pulled.count_down();
        set.wait(is_sparse ? set.push(0, keys, ones) : set.push(0, ones));
        set.wait(before);
        EXPECT_EQ(sum(), 0);
        EXPECT_EQ(set.ranks().size(), 2) << "the control: there was a loss";
        while (sum() < 64) set.wait(pull());
        set.leave();
      });
    }
  }
}

// The links to the servers have room for all that the worker sends, so that it never waits for one.
TEST(ServerLosses, AWorkerThatOnlyPushesLearnsOfALoss) {
  std::latch dead(1);
  run_threads(3, [&](const Communicator& world) {
    const ServerFunction sum = deadly(server_functions::sum(), world, {{2, 1}});
    ServerSet set(world, {{"counts", counters, DType::i64, {}, sum}},
                  {.servers = 2, .consistency = Consistency::eventual(), .part_elements = 10, .copies = 1});
    if (set.is_server()) {
      serve_until_death(set);
      if (world.rank() == 2) dead.count_down();
      return;
    }
    const Tensor ones({counters}, DType::i64);
    std::fill_n(ones.data<std::int64_t>(), counters, 1);
    set.push(0, ones);
    dead.wait();
    set.push(0, ones);
    EXPECT_EQ(set.ranks().size(), 2);
    set.leave();
  });
}

// A server dies over a question: the others answer it again, for the parts of the dead one, too.
TEST(ServerLosses, AQuestionIsAskedAgainBehindALoss) {
  run_threads(4, [&](const Communicator& world) {
    ServerSet set(world, {{"counts", counters, DType::i64, {}, server_functions::sum()}},
                  {.servers = 3, .part_elements = 1, .copies = 1});
    const auto answer = [&](const ServerSet::Question& question) {
      if (world.rank() == 2) throw Killed();
      std::string elements;
      for (const ServerSet::HeldPart& part : question.parts) elements += part.is_copy ? '-' : '+';
      return std::to_string(question.server) + elements;
    };
    if (set.is_server()) return serve_until_death(set, answer);
    const std::vector<std::string> answers = set.ask("what");
    ASSERT_EQ(answers.size(), 2U);
    std::int64_t first = 0, copied = 0;
    for (const std::string& each : answers) {
      first += std::ranges::count(each, '+');
      copied += std::ranges::count(each, '-');
    }
    EXPECT_EQ(first, counters);
    EXPECT_EQ(copied, counters);
    EXPECT_EQ(answers[0].front(), '0');
    EXPECT_EQ(answers[1].front(), '1');
    set.leave();
  });
}

// Worker 1 calls nothing while the others meet. Each of its later calls says so, and the others go on without it.
TEST(ServerLosses, AWorkerThatTheOthersHaveLeftBehindEnds) {
  std::latch met(2);
  run_threads(4, [&](const Communicator& world) {
    ServerSet set(world, {{"counts", counters, DType::i64, {}, server_functions::sum()}},
                  {.servers = 2, .consistency = Consistency::eventual(), .part_elements = 10, .copies = 1});
    world.job().set_timeout(2);
    if (world.rank() == 3) return world.job().abort("it is killed.");
    const Tensor values = Tensor::zeros({counters}, DType::i64);
    if (world.rank() == 1) {
      met.wait();
      for (int call = 0; call < 3; ++call) {
        EXPECT_THAT(sentence_of(ErrorCode::peer_gave_up, [&] { set.wait(set.pull(0, values)); }),
                    HasSubstr("have gone on without rank 1"));
      }
      return;
    }
    if (world.rank() == 0) {
      set.wait(set.pull(0, values));
      EXPECT_EQ(set.ranks().size(), 2);
      met.count_down();
      set.leave();
    } else {
      set.serve();
      met.count_down();
    }
  });
}

// Worker 2 is lost behind its third push: the others go on, and the mean is that of two.
TEST(ServerLosses, ALostWorkerIsNotWaitedFor) {
  for (const Consistency consistency : consistencies) {
    for (const int copies : {0, 1}) {
      run_threads(worker_count + 2, [&](const Communicator& world) {
        ServerSet set(
            world,
            {{"mean", counters, DType::f64, {}, server_functions::sgd({.lr = -1, .momentum = 0}, true)},
             {"counts", counters, DType::i64, {}, server_functions::sum()}},
            {.servers = 2, .consistency = consistency, .part_elements = 10, .copies = copies, .survivors_go_on = true});
        if (set.is_server()) return set.serve();
        const Tensor ones({counters}, DType::i64), found({counters}, DType::i64);
        const Tensor one({counters}, DType::f64), mean({counters}, DType::f64);
        for (std::int64_t i = 0; i < counters; ++i) ones.set(i, 1), one.set(i, 1);
        for (int i = 0; i < 10; ++i) {
          if (world.rank() == 2 && i == 3) return world.job().abort("it is lost.");
          set.wait(set.push_pull(0, one, mean));
          set.wait(set.push_pull(1, ones, found));
        }
        const bool is_eventual = consistency.kind == Consistency::Kind::eventual;
        std::int64_t count = 0;
        while (count < 20) {
          set.wait(set.pull(1, found));
          count = *std::min_element(found.data<std::int64_t>(), found.data<std::int64_t>() + counters);
        }
        EXPECT_LE(*std::max_element(found.data<std::int64_t>(), found.data<std::int64_t>() + counters), 23);
        while (!is_eventual && set.version(0) < 10) set.wait(set.pull(0, mean));
        if (!is_eventual) {
          EXPECT_EQ(mean.at(7), 10) << "a mean of ones in each step";
        }
        set.leave();
      });
    }
  }
}

// A rank that is lost when all have left ends nothing: rank 0 without which nobody could meet, a worker, a server.
TEST(ServerLosses, ALossBehindTheEndDoesNotMatter) {
  for (int round = 0; round < (all_tests() ? 60 : 20); ++round) {
    for (const int lost : {0, 1, worker_count}) {
      std::atomic<int> ended = 0;
      run_threads(worker_count + 2, [&](const Communicator& world) {
        {
          ServerSet set(world, {{"counts", counters, DType::i64, {}, server_functions::sum()}},
                        {.servers = 2, .part_elements = 10, .copies = 1});
          if (set.is_server()) {
            set.serve();
          } else {
            const Tensor values = Tensor::zeros({counters}, DType::i64);
            set.wait(set.push_pull(0, values, values.clone()));
            set.leave();
          }
        }
        ++ended;
        if (world.rank() == lost) world.job().abort("it is lost behind the end.");
      });
      EXPECT_EQ(ended, worker_count + 2) << "round " << round << ", rank " << lost;
    }
  }
}

}  // namespace
}  // namespace stretto
