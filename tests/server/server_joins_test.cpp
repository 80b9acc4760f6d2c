// Servers that join while workers push and pull.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <latch>
#include <set>
#include <thread>

#include "server/served_training.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

// Serves; a spare joins when workers have made so many pushes, each spare after as many more.
void serve(ServerSet& set, int rank, int first_spare, const std::atomic<int>& pushes, int joins_after) {
  if (rank >= first_spare) {
    while (pushes < joins_after * (1 + rank - first_spare)) std::this_thread::sleep_for(std::chrono::microseconds(100));
    set.join();
  }
  set.serve();
  if (rank >= first_spare) {
    EXPECT_THAT(set.state(), testing::Not(HasSubstr(": 0 parts"))) << "parts have moved";
  }
}

// Calls pull() until this worker has been told that each of the servers from first_spare on has a part.
void pull_until_all_serve(const ServerSet& set, int table, std::int64_t its_elements, int first_spare, int spares,
                          const std::function<void()>& pull) {
  const double deadline = now_seconds() + 60;
  const auto all_serve = [&] {
    std::set<int> found;
    for (std::int64_t i = 0; i < its_elements; ++i) found.insert(set.server_of(table, i));
    return std::distance(found.lower_bound(first_spare), found.end()) == spares;
  };
  do pull();
  while (!all_serve() && now_seconds() < deadline);
}

// Parts that the ring gives to any of the servers that join.
std::set<std::int64_t> parts_to_move(int parts, int first, int servers, int spares) {
  HashRing ring;
  for (int server = first; server < first + servers; ++server) ring.add(server);
  std::set<std::int64_t> result;
  for (std::int64_t p = 0; p < parts; ++p) {
    if (ring.owner((std::uint64_t{1} << 32) + static_cast<std::uint64_t>(p)) >= first + servers - spares) result.insert(p);
  }
  return result;
}

TEST(ServerJoins, ExactlyThePartsOfTheRingMoveAndNoPushIsLostOrDoubled) {
  constexpr int workers = 3, servers = 4, parts = 200, pushes = 40;
  for (const Consistency consistency : {Consistency::sequential(), Consistency::bounded(3), Consistency::eventual()}) {
    for (const int spares : {1, 2, 3}) {
      const std::set<std::int64_t> expected = parts_to_move(parts, workers, servers, spares);
      const double share = static_cast<double>(expected.size()) / parts;
      EXPECT_NEAR(share, static_cast<double>(spares) / servers, 0.3 * spares / servers);
      EXPECT_NE(expected, parts_to_move(parts, workers + 1, servers, spares)) << "the control: other servers";
      std::atomic<int> pushed = 0;
      run_threads(workers + servers, [&](const Communicator& world) {
        ServerSet set(world, {{"counts", 3 * parts, DType::i64, {}, server_functions::sum()}},
                      {.servers = servers, .consistency = consistency, .part_elements = 3, .spares = spares});
        if (set.is_server()) return serve(set, world.rank(), workers + servers - spares, pushed, 60 / (1 + spares));
        std::vector<int> before, behind;
        const auto note = [&](std::vector<int>& of) {
          of.clear();
          for (std::int64_t p = 0; p < parts; ++p) of.push_back(set.server_of(0, 3 * p));
        };
        note(before);
        EXPECT_LT(*std::ranges::max_element(before), workers + servers - spares);
        const Tensor ones({3 * parts}, DType::i64), found({3 * parts}, DType::i64);
        std::fill_n(ones.data<std::int64_t>(), ones.size(), 1);
        for (int i = 0; i < pushes; ++i) {
          set.wait(set.push_pull(0, ones, found));
          ++pushed;
        }
        const auto moved = [&] {
          std::set<std::int64_t> result;
          for (std::size_t p = 0; p < parts; ++p) {
            if (before[p] != behind[p]) result.insert(static_cast<std::int64_t>(p));
          }
          return result;
        };
        const double deadline = now_seconds() + 60;
        do {  // until this worker has been told of all moves, and the others' pushes have come
          set.wait(set.pull(0, found, {.consistency = Consistency::sequential()}));
          note(behind);
        } while (moved() != expected && now_seconds() < deadline);
        EXPECT_EQ(moved(), expected);
        for (std::int64_t i = 0; i < found.size(); ++i) ASSERT_EQ(found.data<std::int64_t>()[i], workers * pushes) << i;
        set.leave();
      });
    }
  }
}

// A join at any time changes no bit, of values, states and versions.
TEST(ServerJoins, ChangeNoBitOfATraining) {
  constexpr int workers = 3, servers = 4, spares = 2, steps = 8;
  for (const Kind& kind : kinds) {
    for (const int delay : {0, 2}) {
      const Tensor expected = reference(kind, workers, delay, steps - delay);
      for (const int joins_after : {0, 1, 5, 10}) {
        std::atomic<int> pushed = 0;
        run_threads(workers + servers, [&](const Communicator& world) {
          ServerSet set(
              world, {{"weights", elements, DType::f32, initial, kind.function(workers)}},
              {.servers = servers, .consistency = Consistency::exact(delay), .part_elements = 20, .spares = spares});
          if (set.is_server()) return serve(set, world.rank(), workers + servers - spares, pushed, joins_after);
          const Tensor weights({elements}, DType::f32);
          for (int step = 0; step < steps; ++step) {
            set.wait(set.pull(0, weights));
            if ((world.rank() + step) % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            set.wait(set.push(0, gradient_of(weights, world.rank(), step)));
            ++pushed;
          }
          pull_until_all_serve(set, 0, elements, workers + servers - spares, spares,
                               [&] { set.wait(set.pull(0, weights)); });
          EXPECT_THAT(weights, has_the_bits_of(expected)) << kind.name << ", delay " << delay << ", " << joins_after;
          set.leave();
        });
      }
    }
  }
}

TEST(ServerJoins, KeysAndFilteredPushesMoveWithTheirParts) {
  constexpr int workers = 2, servers = 3, pushes = 60;
  std::atomic<int> pushed = 0;
  run_threads(workers + servers, [&](const Communicator& world) {
    ServerSet set(world,
                  {{.name = "rows", .dtype = DType::i64, .update = server_functions::sum(), .width = 2},
                   {.name = "values",
                    .elements = 500,
                    .update = server_functions::sum(),
                    .filters = {push_filters::significantly_modified(0)}}},
                  {.servers = servers, .part_elements = 10, .spares = 1});
    if (set.is_server()) return serve(set, world.rank(), workers + servers - 1, pushed, 30);
    std::vector<std::uint64_t> keys;
    for (std::uint64_t key = 0; key < 300; ++key) keys.push_back(key * key * 1000003);
    const Tensor ones({300, 2}, DType::i64), rows({300, 2}, DType::i64), more({500}, DType::f32), values({500}, DType::f32);
    std::fill_n(ones.data<std::int64_t>(), ones.size(), 1);
    for (std::int64_t i = 0; i < 500; ++i) more.set(i, static_cast<double>(i % 7));
    for (int i = 0; i < pushes; ++i) {
      set.wait(set.push(0, keys, ones));
      set.wait(set.push_pull(1, more, values));
      ++pushed;
    }
    pull_until_all_serve(set, 1, 500, workers + servers - 1, 1, [&] { set.wait(set.pull(1, values)); });
    set.wait(set.pull(0, keys, rows));
    for (std::int64_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows.data<std::int64_t>()[i], workers * pushes) << i;
    for (std::int64_t i = 0; i < 500; ++i) ASSERT_EQ(values.at(i), static_cast<double>(workers * pushes * (i % 7))) << i;
    set.leave();
  });
}

// Parts that are larger than a link's buffer, of which none can come to a server that has ended.
TEST(ServerJoins, MayComeWhileTheLastWorkersLeave) {
  constexpr int workers = 2, servers = 4, spares = 2, steps = 3;
  constexpr std::int64_t part = 1 << 18, many = 12 * part;
  for (const int joins_after : {workers * steps - 2, workers * steps, workers * steps + workers}) {
    std::atomic<int> said = 0;  // pushes and goodbyes
    run_threads(workers + servers, [&](const Communicator& world) {
      ServerSet set(world, {{"counts", many, DType::i32, {}, server_functions::sum()}},
                    {.servers = servers, .part_elements = part, .spares = spares});
      if (set.is_server()) {
        while (world.rank() >= workers + servers - spares && said < joins_after) std::this_thread::yield();
        if (world.rank() >= workers + servers - spares) set.join();
        return set.serve();
      }
      const Tensor ones({many}, DType::i32), found({many}, DType::i32);
      std::fill_n(ones.data<std::int32_t>(), many, 1);
      for (int step = 0; step < steps; ++step) {
        set.wait(set.push(0, ones));
        ++said;
      }
      set.wait(set.pull(0, found));
      for (std::int64_t i = 0; i < many; i += part / 2) ASSERT_EQ(found.data<std::int32_t>()[i], workers * steps) << i;
      ++said;
      set.leave();
    });
  }
}

// A worker that left before a server joined has left that server's parts, too.
TEST(ServerJoins, PartsThatMoveKnowWhoHasLeft) {
  HashRing ring;
  for (const int server : {2, 3}) ring.add(server);
  int table = 0;  // of one part, which moves
  while (ring.owner(static_cast<std::uint64_t>(table + 1) << 32) != 3) ++table;
  std::atomic<bool> has_left = false;
  run_threads(4, [&](const Communicator& world) {
    const std::vector<ServedTable> tables(static_cast<std::size_t>(table + 1),
                                          {"counts", 5, DType::i64, {}, server_functions::sum()});
    ServerSet set(world, tables, {.servers = 2, .spares = 1});
    const Tensor five({5}, DType::i64);
    five.zero();
    if (set.is_server()) {
      if (world.rank() == 3) {
        while (!has_left) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its goodbye comes first, mostly
        set.join();
      }
      return set.serve();
    }
    set.wait(set.push_pull(table, five, five));
    if (world.rank() == 0) {
      has_left = true;
      return set.leave();
    }
    pull_until_all_serve(set, table, 5, 3, 1, [&] { set.wait(set.pull(table, five)); });
    expect_refusal([&] { set.wait(set.push_pull(table, five, five)); },
                   "Worker 0 has left the servers after 1 pushes of table counts");
    set.leave();
  });
}

// It has got its parts from another server, which all others know by then.
TEST(ServerJoins, ALostServerThatHasJoinedIsNamedWithItsParts) {
  struct Ended {};
  std::atomic<bool> ends = false;
  std::latch both(2);
  std::vector<std::string> sentences(4);
  run_threads(4, [&](const Communicator& world) {
    ServerFunction sum = server_functions::sum();
    sum.update = [&, inner = sum.update, rank = world.rank()](const ServerUpdate& update) {
      inner(update);
      if (ends && rank == 3) throw Ended();
    };
    ServerSet set(world, {{"counts", 60, DType::i64, {}, sum}}, {.servers = 2, .part_elements = 3, .spares = 1});
    if (world.rank() == 3) {
      set.join();
      try {
        set.serve();
      } catch (const Ended&) {
        world.job().abort("it is killed.");
      }
      return;
    }
    sentences[static_cast<std::size_t>(world.rank())] = sentence_of([&] {
      if (set.is_server()) return set.serve();
      const Tensor ones = Tensor::zeros({60}, DType::i64), found({60}, DType::i64);
      pull_until_all_serve(set, 0, 60, 3, 1, [&] { set.wait(set.pull(0, found)); });
      both.arrive_and_wait();
      ends = true;
      while (true) set.wait(set.push_pull(0, ones, found));
    });
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(sentences[static_cast<std::size_t>(rank)],
                testing::ContainsRegex("it is killed. Lost with this server: elements [0-9 to,]+ of table counts"))
        << rank;
  }
}

// A worker or a server is killed while all others wait for a spare that does not serve yet.
TEST(ServerJoins, ALossBehindTheLastGoodbyeEndsTheSpares) {
  LaunchOptions survivors;
  survivors.survivors_go_on = true;
  const TemporaryDirectory ended;  // a file of each rank that has come to its end
  const auto after = [](int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); };
  for (const int lost : {1, 2, -1}) {
    const std::string mark = "without " + std::to_string(lost) + " rank ";
    const int status = launch(
        5,
        [&](const Communicator& world) {
          ServerSet set(world, {{"counts", 60, DType::i64, {}, server_functions::sum()}},
                        {.servers = 3, .part_elements = 3, .spares = 1});
          if (world.rank() == lost) {
            std::thread([&] {
              after(300);
              raise(SIGKILL);
            }).detach();
          }
          if (world.rank() == 4) after(800);
          const std::string sentence = sentence_of([&] {
            if (set.is_server()) return set.serve();
            const Tensor ones = Tensor::zeros({60}, DType::i64);
            set.wait(set.push_pull(0, ones, ones));
            set.leave();
          });
          ended.write(mark + std::to_string(world.rank()), sentence);
          if (!sentence.empty()) throw Error(ErrorCode::peer_lost, sentence);
        },
        survivors);
    EXPECT_EQ(status == 0, lost < 0) << mark;
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(std::filesystem::exists(ended / (mark + std::to_string(rank))), rank != lost) << mark << rank;
    }
  }
}

TEST(ServerJoins, ASpareThatNeverJoinsServesNothing) {
  run_threads(3, [](const Communicator& world) {
    ServerSet set(world, {{"counts", 30, DType::i64, {}, server_functions::sum()}},
                  {.servers = 2, .part_elements = 3, .spares = 1});
    if (set.is_server()) return set.serve();
    const Tensor ones({30}, DType::i64);
    std::fill_n(ones.data<std::int64_t>(), 30, 1);
    set.wait(set.push_pull(0, ones, ones));
    for (std::int64_t i = 0; i < 30; ++i) EXPECT_EQ(set.server_of(0, i), 1);
    set.leave();
  });
}

TEST(ServerJoins, RefusesWhatCannotBe) {
  run_threads(3, [](const Communicator& world) {
    const auto with = [&](const ServerSet::Options& options, bool key_cache = false) {
      return [&world, options, key_cache] {
        ServerSet(world, {{.name = "rows", .update = server_functions::sum(), .width = 2, .key_cache = key_cache}}, options);
      };
    };
    expect_refusal(with({.servers = 2, .spares = 2}), "2 spares of 2 servers leave none");
    expect_refusal(with({.servers = 2, .copies = 1, .spares = 1}), "1 spares do not go with 1 copies");
    expect_refusal(with({.servers = 2, .spares = 1, .survivors_go_on = true}), "and survivors that go on");
    expect_refusal(with({.servers = 2, .spares = 1}, true), "Table rows has a key cache");
    ServerSet set(world, {{"counts", 30, DType::i64, {}, server_functions::sum()}}, {.servers = 2, .spares = 1});
    if (world.rank() == 1) expect_refusal([&] { set.join(); }, "Rank 1 is no spare server");
    if (world.rank() == 2) {
      set.join();
      expect_refusal([&] { set.join(); }, "Server 2 has joined already");
    }
    if (!set.is_server()) return set.leave();
    set.serve();
    if (world.rank() == 2) expect_refusal([&] { set.join(); }, "call join() before serve()");
  });
}

}  // namespace
}  // namespace stretto
