// Workers that leave before others: who waits for their pushes learns it, and everybody is served on.
#include <gmock/gmock.h>

#include <algorithm>
#include <latch>
#include <string>
#include <vector>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

constexpr std::int64_t left_elements = 4;

Tensor left_filled(std::int64_t value) {
  Tensor tensor({left_elements}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), left_elements, value);
  return tensor;
}

int times_in(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// Table 0 is dense; table 1 is sparse, which `exact` is not for.
std::vector<ServedTable> left_tables(const ServerSet::Options& options) {
  std::vector<ServedTable> tables{{"dense", left_elements, DType::i64, {}, server_functions::sum()}};
  if (options.consistency.kind == Consistency::Kind::exact) return tables;
  tables.push_back({.name = "sparse", .dtype = DType::i64, .update = server_functions::sum(), .width = left_elements});
  return tables;
}

// Worker 0 pushes once and leaves. Worker 1 pushes `pushes` times and pulls; returns all that it is told.
std::string told_to_the_other(const ServerSet::Options& options, bool is_sparse, int pushes) {
  std::string told;
  run_threads(2 + options.servers, [&](const Communicator& world) {
    ServerSet set(world, left_tables(options), options);
    if (set.is_server()) return set.serve();
    const Tensor ones = left_filled(1), found = left_filled(5);
    const auto push = [&] { set.wait(is_sparse ? set.push(1, {7}, ones) : set.push(0, ones)); };
    const auto pull = [&] { set.wait(is_sparse ? set.pull(1, {7}, found) : set.pull(0, found)); };
    if (world.rank() == 0) {
      push();
      return set.leave();
    }
    for (int i = 0; i < pushes; ++i) told += sentence_of(push) + '\n';
    const std::string refusal = sentence_of(ErrorCode::invalid_argument, pull);
    EXPECT_EQ(std::ranges::count(refusal, '\n'), 0) << "one line for all parts";
    told += refusal + '\n';
    if (options.consistency.kind != Consistency::Kind::exact) {
      told += sentence_of([&] { set.wait(is_sparse ? set.pull(0, found) : set.pull(1, {7}, found)); }) + '\n';
      EXPECT_EQ(found.at(0), 0) << "of the other table: the servers serve on";
    }
    for (int calls = 0; calls < 3; ++calls) {
      const std::string late = sentence_of([&] { set.leave(); });
      if (late.empty()) return;
      told += late + '\n';
    }
    ADD_FAILURE() << "it cannot leave: " << told;
  });
  return told;
}

TEST(LeftWorkers, AreNamedToWhoWaitsForThem) {
  for (const bool is_sparse : {false, true}) {
    for (const Consistency consistency : {Consistency::sequential(), Consistency::bounded(1), Consistency::exact(1)}) {
      for (const int copies : {0, 1}) {
        if (is_sparse && consistency.kind == Consistency::Kind::exact) continue;
        const int pushes = 2 + consistency.delay;
        const std::string told = told_to_the_other(
            {.servers = 2, .consistency = consistency, .part_elements = 1, .copies = copies}, is_sparse, pushes);
        const std::string table = is_sparse ? "sparse" : "dense";
        const std::string left = "Worker 0 has left the servers after 1 pushes of table " + table;
        EXPECT_EQ(times_in(told, left + ", and the pull of worker 1 at clock " + std::to_string(pushes) +
                                     " waits for 2 of all workers: all must push a table equally often."),
                  1)
            << told;
        const int stuck = times_in(
            told, left + ", and those of worker 1 behind them are not applied: all must push a table equally often.");
        EXPECT_GE(stuck, copies) << told;
        EXPECT_LE(stuck, copies * (pushes - 1)) << "each push is told of once: " << told;
      }
    }
  }
}

// The control: what has all pushes that it needs is answered.
TEST(LeftWorkers, AreNotWaitedForOtherwise) {
  for (const Consistency consistency : {Consistency::bounded(1), Consistency::exact(1)}) {
    run_threads(3, [&](const Communicator& world) {
      const ServerSet::Options options{.consistency = consistency};
      ServerSet set(world, left_tables(options), options);
      if (set.is_server()) return set.serve();
      const Tensor ones = left_filled(1), found = left_filled(0);
      set.wait(set.push(0, ones));
      if (world.rank() == 1) {
        set.wait(set.push(0, ones));
        set.wait(set.pull(0, found));
        EXPECT_EQ(found.at(0), 2) << "of the first pushes";
        expect_refusal([&] { set.wait(set.pull(0, found, {.consistency = Consistency::sequential()})); },
                       "the pull of worker 1 waits for 2 of all workers");
      }
      set.leave();
    });
  }
}

// With `eventual`, only sequential pulls wait for other workers: here first for worker 2, which has not left, and then
// for worker 0, which has.
TEST(LeftWorkers, OfEventualConsistencyHoldUpSequentialPullsOnly) {
  std::latch left(1), asked(1);
  run_threads(4, [&](const Communicator& world) {
    const ServerSet::Options options{.consistency = Consistency::eventual()};
    ServerSet set(world, left_tables(options), options);
    if (set.is_server()) return set.serve();
    const Tensor ones = left_filled(1), found = left_filled(0);
    if (world.rank() == 2) asked.wait();
    set.wait(set.push(0, ones));
    if (world.rank() == 0) {
      set.leave();
      return left.count_down();
    }
    if (world.rank() == 1) {
      left.wait();
      const ServerSet::Pending settled = set.pull(0, found, {.consistency = Consistency::sequential()});
      set.wait(set.pull(0, left_filled(0)));
      asked.count_down();
      set.wait(settled);
      EXPECT_EQ(found.at(0), 3);
      set.wait(set.push(0, ones));
      expect_refusal([&] { set.wait(set.pull(0, found, {.consistency = Consistency::sequential()})); },
                     "Worker 0 has left the servers after 1 pushes of table dense, and the pull of worker 1 waits for 2");
      set.wait(set.pull(0, found));
      EXPECT_EQ(found.at(0), 4);
    }
    set.leave();
  });
}

}  // namespace
}  // namespace stretto
