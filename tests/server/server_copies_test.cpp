// Servers are lost that have copies, and the others go on: nothing is lost, nothing is applied twice.
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <latch>
#include <random>
#include <thread>

#include "core/fail.hpp"
#include "server/dying_servers.hpp"
#include "server/served_training.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

const std::vector<std::uint64_t> counted_keys{3, 17, 1000, 5000000000, ~std::uint64_t{0}};

// Every worker pushes ones to a dense and a sparse table. Counts never become less in the eyes of a worker, are no staler
// than the consistency allows, and in the end are exact; so many servers are lost then, and no more.
void count_through(
    const Communicator& world, const ServerSet::Options& options, const std::vector<Death>& deaths, int pushes,
    const std::function<void()>& when_made = [] {}, int kills = 0) {
  const ServerFunction sum = deadly(server_functions::sum(), world, deaths);
  ServerSet set(
      world, {{"dense", counters, DType::i64, {}, sum}, {.name = "sparse", .dtype = DType::i64, .update = sum, .width = 1}},
      options);
  when_made();
  if (set.is_server()) return serve_until_death(set);
  const Tensor ones({counters}, DType::i64), found = Tensor::zeros({counters}, DType::i64);
  const Tensor row_ones({std::ssize(counted_keys), 1}, DType::i64),
      rows = Tensor::zeros({std::ssize(counted_keys), 1}, DType::i64);
  std::fill_n(ones.data<std::int64_t>(), counters, 1);
  std::fill_n(row_ones.data<std::int64_t>(), counted_keys.size(), 1);
  const auto check = [&](const Tensor& tensor, const Tensor& before, int clock) {
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const std::int64_t count = tensor.data<std::int64_t>()[i];
      ensure(count >= before.data<std::int64_t>()[i] && count <= std::int64_t{set.workers()} * pushes,
             "{} pushes are read behind {}.", count, before.data<std::int64_t>()[i]);
      const bool is_eventual = options.consistency.kind == Consistency::Kind::eventual;
      const std::int64_t least = is_eventual ? clock : std::int64_t{set.workers()} * (clock - options.consistency.delay);
      ensure(count >= least, "Only {} pushes are read at clock {}.", count, clock);
    }
  };
  for (int i = 0; i < pushes; ++i) {
    const Tensor before = found.clone(), rows_before = rows.clone();
    const ServerSet::Pending dense = set.pull(0, found), sparse = set.pull(1, counted_keys, rows);
    set.wait(sparse);
    set.wait(dense);
    check(found, before, i);
    check(rows, rows_before, i);
    set.push(1, counted_keys, row_ones);
    set.wait(set.push(0, ones));
  }
  const std::int64_t all = std::int64_t{set.workers()} * pushes;
  const auto are_all = [&](const Tensor& tensor) {
    const auto* const begin = tensor.data<std::int64_t>();
    return std::all_of(begin, begin + tensor.size(), [&](std::int64_t count) { return count == all; });
  };
  while (!are_all(found)) set.wait(set.pull(0, found));  // until the others' have come, too
  while (!are_all(rows)) set.wait(set.pull(1, counted_keys, rows));
  const int left = world.size() - static_cast<int>(deaths.size()) - kills;
  while (set.ranks().size() > left && kills > 0) set.wait(set.pull(0, found));  // they may come late
  set.leave();
  ensure(set.ranks().size() == left, "{} ranks are left instead of {}.", set.ranks().size(), left);
}

TEST(ServerCopies, CountsAreExactThroughTheDeathOfAServer) {
  for (const Consistency consistency : consistencies) {
    for (const int update : {1, 2, 7, 30, 60}) {
      for (int server = worker_count; server < worker_count + 3; ++server) {
        run_threads(worker_count + 3, [&](const Communicator& world) {
          count_through(world, {.servers = 3, .consistency = consistency, .part_elements = 10, .copies = 1},
                        {{server, update}}, 20);
        });
      }
    }
  }
}

TEST(ServerCopies, CountsAreExactThroughTheDeathsOfAllServersButOne) {
  std::mt19937 draw(seed_of_the_day());
  for (int round = 0; round < (all_tests() ? 100 : 6); ++round) {
    std::vector<Death> deaths;
    for (int server = 0; server < 3; ++server) {
      // A server makes at least 100 updates: 20 of each of 4 dense parts, and of one of the keys or more.
      deaths.push_back({worker_count + (round + server) % 4, static_cast<int>(1 + draw() % 100)});
    }
    run_threads(worker_count + 4, [&](const Communicator& world) {
      count_through(world, {.servers = 4, .consistency = consistencies[round % 3], .part_elements = 10, .copies = 3}, deaths,
                    20);
    });
  }
}

// Two servers of a chain die in one update, and both servers behind the third one are new: the second of them gets the part
// from the first. Each of the two has parts that the other has not, so that both come to an update.
TEST(ServerCopies, CountsAreExactThroughTwoDeathsAtOnce) {
  for (int first = worker_count; first < worker_count + 5; ++first) {
    for (int second = first + 1; second < worker_count + 5; ++second) {
      std::latch both(2);
      run_threads(worker_count + 5, [&](const Communicator& world) {
        ServerFunction sum = server_functions::sum();
        sum.update = [&, inner = sum.update, rank = world.rank()](const ServerUpdate& update) {
          inner(update);
          if (rank != first && rank != second) return;
          both.arrive_and_wait();
          throw Killed();
        };
        ServerSet set(world, {{"counts", 20 * counters, DType::i64, {}, sum}},
                      {.servers = 5, .part_elements = 20, .copies = 2});
        if (set.is_server()) return serve_until_death(set);
        const Tensor ones({20 * counters}, DType::i64), found({20 * counters}, DType::i64);
        std::fill_n(ones.data<std::int64_t>(), ones.size(), 1);
        for (int i = 1; i <= 10; ++i) {
          set.wait(set.push_pull(0, ones, found));
          const auto* const begin = found.data<std::int64_t>();
          EXPECT_EQ(std::count(begin, begin + found.size(), worker_count * i), found.size());
        }
        set.leave();
        EXPECT_EQ(set.ranks().size(), worker_count + 3);
      });
    }
  }
}

// The next server has the optimizer's state, too: the bits are those of a run without losses.
TEST(ServerCopies, TrainingKeepsItsBitsThroughADeath) {
  constexpr int steps = 12;
  for (const Kind& kind : kinds) {
    for (const Consistency consistency : {Consistency::sequential(), Consistency::exact(2)}) {
      for (const int copies : {1, 2}) {
        std::vector<Tensor> of(worker_count);
        run_threads(worker_count + 3, [&](const Communicator& world) {
          const ServerFunction function = deadly(kind.function(worker_count), world, {{worker_count + 1, 9}});
          ServerSet set(world, {{"weights", elements, DType::f32, initial, function}},
                        {.servers = 3, .consistency = consistency, .part_elements = 200, .copies = copies});
          if (set.is_server()) return serve_until_death(set);
          const Tensor weights({elements}, DType::f32);
          for (int step = 0; step < steps; ++step) {
            set.wait(set.pull(0, weights));
            set.push(0, gradient_of(weights, world.rank(), step));
          }
          set.wait(set.pull(0, weights));
          EXPECT_EQ(set.version(0), steps - consistency.delay);
          of[static_cast<std::size_t>(world.rank())] = weights;
          set.leave();
          EXPECT_EQ(set.ranks().size(), worker_count + 2);
        });
        const int delay = consistency.delay;
        for (const Tensor& weights : of) {
          EXPECT_THAT(weights, has_the_bits_of(reference(kind, worker_count, delay, steps - delay)));
          EXPECT_THAT(weights, testing::Not(has_the_bits_of(reference(kind, worker_count, delay, steps - delay - 1))));
        }
      }
    }
  }
}

// With k copies a step's sums travel k times more, however many workers there are.
TEST(ServerCopies, ServersSendEachSumOncePerCopy) {
  constexpr int steps = 5;
  for (const int copies : {0, 1, 2}) {
    std::atomic<std::uint64_t> sent = 0;
    run_threads(worker_count + 3, [&](const Communicator& world) {
      ServerSet set(world, {{"counts", counters, DType::i64, {}, server_functions::sum()}},
                    {.servers = 3, .part_elements = 10, .copies = copies});
      if (set.is_server()) {
        set.serve();
        sent += set.traffic().payload;
        return;
      }
      const Tensor values = Tensor::zeros({counters}, DType::i64);
      for (int step = 0; step < steps; ++step) set.wait(set.push_pull(0, values, values.clone()));
      EXPECT_EQ(set.traffic().payload, steps * counters * 8U);
      set.leave();
    });
    EXPECT_EQ(sent, (worker_count + static_cast<std::uint64_t>(copies)) * steps * counters * 8);
  }
}

TEST(ServerCopies, PartsWithoutACopyAreNamed) {
  const auto sentence = [](const ServerSet::Options& options, const std::vector<Death>& deaths) {
    return sentence_of(ErrorCode::peer_lost, [&] {
      run_threads(worker_count + options.servers,
                  [&](const Communicator& world) { count_through(world, options, deaths, 50); });
    });
  };
  EXPECT_THAT(
      sentence({.servers = 1, .part_elements = 10, .survivors_go_on = true}, {{3, 20}}),
      HasSubstr("Lost with rank 3: elements 0 to 39 of table dense, 4 of 4 parts of the keys of table sparse, of which no "
                "other server has a copy"));
  EXPECT_THAT(sentence({.servers = 2, .part_elements = 10, .copies = 1}, {{3, 20}, {4, 50}}),
              HasSubstr("Lost with ranks 3 and 4: elements 0 to 39 of table dense, 8 of 8 parts"));
}

// Without copies, and unless survivors are to go on, the job ends.
TEST(ServerCopies, WithoutThemALostServerIsNamedWithWhatItHad) {
  std::vector<std::string> sentences(worker_count);
  EXPECT_THAT(sentence_of([&] {
                run_threads(worker_count + 2, [&](const Communicator& world) {
                  if (world.rank() >= worker_count) {
                    return count_through(world, {.servers = 2, .part_elements = 10}, {{4, 20}}, 50);
                  }
                  sentences[static_cast<std::size_t>(world.rank())] =
                      sentence_of([&] { count_through(world, {.servers = 2, .part_elements = 10}, {}, 50); });
                });
              }),
              HasSubstr("Lost with this server"));
  for (const std::string& sentence : sentences) {
    EXPECT_THAT(sentence, testing::ContainsRegex(
                              "it is killed. Lost with this server: elements [0-9 to,]+ of table dense, 4 of 8 parts of "
                              "the keys of table sparse"));
  }
}

TEST(ServerCopies, RefuseWhatCannotBe) {
  run_threads(3, [](const Communicator& world) {
    const std::vector<ServedTable> tables = {{"a", 4, DType::f32, {}, server_functions::sum()}};
    EXPECT_THAT(sentence_of([&] { const ServerSet set(world, tables, {.servers = 1, .copies = 1}); }),
                HasSubstr("1 servers cannot keep 1 copies"));
    EXPECT_THAT(sentence_of([&] { const ServerSet set(world, tables, {.servers = 2, .copies = -1}); }),
                HasSubstr("-1 copies"));
    const Communicator two = world.split(world.rank() / 2, 0, "some");
    if (two.size() == 2) {
      EXPECT_THAT(sentence_of([&] { const ServerSet set(two, tables, {.survivors_go_on = true}); }),
                  HasSubstr("2 of a job's 3 ranks cannot go on"));
    }
  });
}

// Processes, killed by SIGKILL at any moment while workers push.
int status_through_kills(unsigned servers, int copies, int kills, unsigned seed) {
  LaunchOptions survivors;
  survivors.survivors_go_on = true;
  return launch(
      worker_count + static_cast<int>(servers),
      [&](const Communicator& world) {
        const auto kill_some = [&] {
          std::mt19937 draw(seed);
          for (int kill = 0; kill < kills; ++kill) {
            const auto moment = std::chrono::microseconds(draw() % 40000);
            if (world.rank() != worker_count + static_cast<int>((seed + static_cast<unsigned>(kill)) % servers)) continue;
            std::thread([moment] {
              std::this_thread::sleep_for(moment);
              raise(SIGKILL);
            }).detach();
          }
        };
        count_through(world,
                      {.servers = static_cast<int>(servers),
                       .consistency = consistencies[seed % 3],
                       .part_elements = 10,
                       .copies = copies},
                      {}, 300, kill_some, kills);
      },
      survivors);
}

TEST(ServerCopies, ProcessesCountExactlyThroughKills) {
  const unsigned rounds = all_tests() ? 100 : 4;
  for (unsigned round = 0; round < rounds; ++round) {
    EXPECT_EQ(status_through_kills(3, 1, 1, seed_of_the_day() + round), 0) << round;
  }
  EXPECT_EQ(status_through_kills(4, 2, 2, seed_of_the_day()), 0);
}

#ifdef STRETTO_HAVE_UCX
TEST(ServerCopies, ProcessesCountExactlyThroughKillsBetweenHosts) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  EXPECT_EQ(status_through_kills(3, 1, 1, seed_of_the_day()), 0);
}
#endif

}  // namespace
}  // namespace stretto
