// The consistency of a table, and of a single pull.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

constexpr int counting_workers = 3, counting_steps = 30;

// Each element counts the pushes of each worker: 1000^worker. What a pull has of a worker is read off the values, and not
// off the code that waits.
struct CountedTable {
  std::string name;
  Consistency consistency;
  bool is_sparse = false;

  static constexpr std::int64_t elements = 10;
  ServedTable served() const {
    ServedTable table{name, is_sparse ? 0 : elements, DType::i64, {}, server_functions::sum()};
    table.width = is_sparse ? 1 : 0;
    table.consistency = consistency;
    return table;
  }
  static std::vector<std::uint64_t> keys() { return {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; }
};

struct Counter {
  ServerSet& set;
  int table;
  bool is_sparse;
  Tensor found = Tensor::zeros({CountedTable::elements, 1}, DType::i64);
  Tensor one = Tensor({CountedTable::elements, 1}, DType::i64);

  Counter(ServerSet& its_set, int its_table, bool sparse, int worker) : set(its_set), table(its_table), is_sparse(sparse) {
    std::int64_t unit = 1;
    for (int i = 0; i < worker; ++i) unit *= 1000;
    std::fill_n(one.data<std::int64_t>(), one.size(), unit);
  }
  ServerSet::Pending pull(const ServerSet::Task& task = {}) {
    return is_sparse ? set.pull(table, CountedTable::keys(), found, {}, task) : set.pull(table, found, task);
  }
  ServerSet::Pending push() { return is_sparse ? set.push(table, CountedTable::keys(), one) : set.push(table, one); }
  // The pushes of each worker in each element.
  std::vector<int> counts() const {
    std::vector<int> result;
    for (std::int64_t i = 0; i < found.size(); ++i) {
      std::int64_t rest = found.data<std::int64_t>()[i];
      for (int worker = 0; worker < counting_workers; ++worker, rest /= 1000)
        result.push_back(static_cast<int>(rest % 1000));
    }
    return result;
  }
  int least() const { return std::ranges::min(counts()); }
  int most() const { return std::ranges::max(counts()); }
};

// The tables go on at speeds of their own, driven by callbacks: only so can one get ahead of another.
TEST(Consistency, IsEachTablesOwn) {
  const std::vector<CountedTable> tables = {{"sequential", Consistency::sequential()},
                                            {"bounded", Consistency::bounded(2)},
                                            {"exact", Consistency::exact(1)},
                                            {"eventual", Consistency::eventual()},
                                            {"of the set", Consistency::bounded(4), true}};
  std::atomic<int> stale = 0;
  run_threads(counting_workers + 2, [&](const Communicator& world) {
    std::vector<ServedTable> served;
    for (const CountedTable& table : tables) served.push_back(table.served());
    served.back().consistency.reset();
    ServerSet set(world, served, {.servers = 2, .consistency = Consistency::bounded(4), .part_elements = 4});
    if (set.is_server()) return set.serve();
    std::vector<Counter> counters;
    for (std::size_t t = 0; t < tables.size(); ++t) {
      counters.emplace_back(set, static_cast<int>(t), tables[t].is_sparse, world.rank());
    }
    int ended = 0;
    const auto step_of = [&](const auto& again, std::size_t t, int step) -> void {
      if (step == counting_steps) {
        ++ended;
        return;
      }
      set.when_done(counters[t].pull(), [&, again, t, step](const std::exception_ptr&) {
        const int least = counters[t].least(), most = counters[t].most();
        const Consistency consistency = tables[t].consistency;
        if (consistency.kind == Consistency::Kind::eventual) {
          stale += least < step - 4 ? 1 : 0;
        } else {
          EXPECT_GE(least, step - consistency.delay) << tables[t].name;
          EXPECT_LE(most, step) << tables[t].name;
        }
        if (consistency.kind == Consistency::Kind::exact) {
          EXPECT_EQ(least, std::max(0, step - 1));
          EXPECT_EQ(most, least);
        }
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        counters[t].push();
        again(again, t, step + 1);
      });
    };
    for (std::size_t t = 0; t < tables.size(); ++t) step_of(step_of, t, 0);
    while (ended < static_cast<int>(tables.size())) set.poll();
    set.leave();
  });
  EXPECT_GT(stale, 0) << "the control: the eventual table is staler than the others may be";
}

// Before each pull with a delay of its own comes one without, which must have been staler at times.
void pull_with_own_delays(const ServerSet::Options& options) {
  const std::vector<CountedTable> tables = {{"bounded", Consistency::bounded(8)},
                                            {"eventual", Consistency::eventual()},
                                            {"sparse", Consistency::bounded(8), true},
                                            {"sparse and eventual", Consistency::eventual(), true}};
  std::vector<std::atomic<int>> stale(tables.size());
  std::latch made(counting_workers + options.servers);
  run_threads(counting_workers + options.servers, [&](const Communicator& world) {
    std::vector<ServedTable> served;
    for (const CountedTable& table : tables) served.push_back(table.served());
    ServerSet set(world, served, options);
    made.arrive_and_wait();
    if (options.copies > 0 && world.rank() == world.size() - 1) return world.job().abort("it is killed.");
    if (set.is_server()) return set.serve();
    for (std::size_t t = 0; t < tables.size(); ++t) {
      Counter counter(set, static_cast<int>(t), tables[t].is_sparse, world.rank());
      for (int step = 0; step < counting_steps; ++step) {
        const int delay = step % 3;
        set.wait(counter.pull());
        if (counter.least() < step - delay) ++stale[t];
        set.wait(counter.pull({.consistency = Consistency::bounded(delay)}));
        EXPECT_GE(counter.least(), step - delay) << tables[t].name;
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        set.wait(counter.push());
      }
      set.wait(counter.pull({.consistency = Consistency::sequential()}));
      EXPECT_EQ(counter.least(), counting_steps) << tables[t].name;
      EXPECT_EQ(counter.most(), counting_steps) << tables[t].name;
    }
    set.leave();
  });
  for (const auto& of_table : stale) EXPECT_GT(of_table, 0) << "the control: other pulls do not wait";
}

TEST(Consistency, APullHasItsOwnDelay) {
  pull_with_own_delays({.servers = 2, .part_elements = 4});
  pull_with_own_delays({.servers = 3, .part_elements = 4, .copies = 1});
}

// The newest version, though the servers of an exact table have older ones, too.
TEST(Consistency, APullOfAnExactTableMayWantTheNewest) {
  run_threads(counting_workers + 1, [](const Communicator& world) {
    ServerSet set(world, {CountedTable{"exact", Consistency::exact(3)}.served()}, {.servers = 1});
    if (set.is_server()) return set.serve();
    Counter counter(set, 0, false, world.rank());
    for (int step = 0; step < counting_steps; ++step) {
      set.wait(counter.pull({.consistency = Consistency::sequential()}));
      EXPECT_EQ(counter.least(), step);
      EXPECT_EQ(set.version(0), step);
      set.wait(counter.pull({.consistency = Consistency::bounded(9)}));
      EXPECT_GE(counter.least(), step - 9);
      EXPECT_LE(counter.most(), step);
      set.wait(counter.pull());
      EXPECT_EQ(counter.most(), std::max(0, step - 3)) << "the control: the table's own";
      EXPECT_EQ(set.version(0), std::max(0, step - 3));
      set.wait(counter.push());
    }
    set.leave();
  });
}

// With a sequential table, the pull would wait for worker 1, which waits for worker 0.
TEST(Consistency, APullMayWaitForNobody) {
  std::latch pulled(1);
  run_threads(counting_workers + 1, [&](const Communicator& world) {
    ServerSet set(world, {CountedTable{"sequential", Consistency::sequential()}.served()}, {.servers = 1});
    if (set.is_server()) return set.serve();
    Counter counter(set, 0, false, world.rank());
    if (world.rank() > 0) pulled.wait();
    set.wait(counter.push());
    if (world.rank() == 0) {
      const ServerSet::Pending waits = set.pull(0, Tensor({CountedTable::elements}, DType::i64));
      set.wait(counter.pull({.consistency = Consistency::eventual()}));
      EXPECT_EQ(counter.most(), 0);
      pulled.count_down();
      set.wait(waits);
    }
    set.leave();
  });
}

TEST(Consistency, RefusesWhatCannotBe) {
  std::string state;
  run_threads(2, [&](const Communicator& world) {
    const auto sentence = [&](const CountedTable& table) {
      return sentence_of([&] { const ServerSet set(world, {table.served()}, {.servers = 1}); });
    };
    EXPECT_THAT(sentence({"a", Consistency::bounded(-1)}), HasSubstr("Table a has a delay of -1"));
    EXPECT_THAT(sentence({"a", Consistency::exact(1), true}), HasSubstr("is sparse, and exact consistency"));
    EXPECT_THAT(sentence({"a", Consistency::bounded(world.rank())}), HasSubstr("a table"));
    ServedTable ranked = CountedTable{"a", Consistency::sequential()}.served();
    ranked.priority = world.rank();
    EXPECT_THAT(sentence_of([&] { const ServerSet set(world, {ranked}, {.servers = 1}); }), HasSubstr("priority"));
    ServerSet set(world, {CountedTable{"exact", Consistency::exact(2)}.served(), CountedTable{"as the set", {}}.served()},
                  {.servers = 1});
    if (set.is_server()) {
      set.serve();
      state = set.state();
      return;
    }
    Counter counter(set, 0, false, 0);
    EXPECT_THAT(sentence_of([&] { counter.pull({.consistency = Consistency::exact(1)}); }), HasSubstr("an exact version"));
    EXPECT_THAT(sentence_of([&] { counter.pull({.consistency = Consistency::bounded(-1)}); }), HasSubstr("a delay of -1"));
    set.leave();
  });
  EXPECT_THAT(state, HasSubstr("consistency bounded 0\n"));
  EXPECT_THAT(state, HasSubstr("table exact\n  version 0, clocks of workers 0, 0 pushes and 0 pulls wait; at rank 1; "
                               "consistency exact 2\n"));
  EXPECT_THAT(state,
              HasSubstr("table as the set\n  version 0, clocks of workers 0, 0 pushes and 0 pulls wait; at rank 1\n"));
}

}  // namespace
}  // namespace stretto
