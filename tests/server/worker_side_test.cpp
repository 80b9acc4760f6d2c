#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <vector>

#include "server/served_layout.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"

namespace stretto {
namespace {

constexpr std::int64_t wide_part = 1 << 16, wide_parts = 12, wide_count = wide_part * wide_parts;  // 512 KiB of i64

Tensor wide_filled(std::int64_t value) {
  Tensor tensor({wide_count}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), wide_count, value);
  return tensor;
}

bool wide_all_are(const Tensor& tensor, std::int64_t value) {
  return std::all_of(tensor.data<std::int64_t>(), tensor.data<std::int64_t>() + wide_count,
                     [&](std::int64_t each) { return each == value; });
}

ServerSet wide_counts(const Communicator& world, const ServerSet::Options& options) {
  return {world, {{"counts", wide_count, DType::i64, {}, server_functions::sum()}}, options};
}

// Worker 0 gets no answer before worker 1 pushes, and has then sent two parts to each server; of a push alone, all.
TEST(WorkerSide, SendsAFewPartsAheadOfTheAnswers) {
  for (const bool pulls : {true, false}) {
    std::latch counted(1);
    run_threads(4, [&](const Communicator& world) {
      ServerSet set = wide_counts(world, {.servers = 2, .part_elements = wide_part});
      if (set.is_server()) return set.serve();
      const Tensor found = wide_filled(0);
      if (world.rank() == 1) counted.wait();
      const ServerSet::Pending pending = pulls ? set.push_pull(0, wide_filled(1), found) : set.push(0, wide_filled(1));
      if (world.rank() == 0) {
        EXPECT_EQ(set.traffic().messages, pulls ? 4U : static_cast<unsigned>(wide_parts));
        counted.count_down();
      }
      set.wait(pending);
      if (pulls) {
        EXPECT_TRUE(wide_all_are(found, 2));
      }
      set.leave();
    });
  }
}

// Parts that have not left come before the next push of their table, and before a question.
TEST(WorkerSide, KeepsTheOrderOfCalls) {
  for (const int copies : {0, 1}) {
    std::atomic<std::int64_t> updates = 0;
    run_threads(3, [&](const Communicator& world) {
      ServerSet set = wide_counts(world, {.servers = 2, .part_elements = wide_part, .copies = copies});
      const auto answer = [&](const ServerSet::Question& question) {
        for (const ServerSet::HeldPart& each : question.parts) updates += each.is_copy ? 0 : each.updates;
        return std::string();
      };
      if (set.is_server()) return set.serve(answer);
      const Tensor first = wide_filled(0), second = wide_filled(0), ones = wide_filled(1), tens = wide_filled(10);
      const ServerSet::Pending one = set.push_pull(0, ones, first);
      const ServerSet::Pending two = set.push_pull(0, tens, second);
      set.ask("");
      set.wait(two);
      set.wait(one);
      EXPECT_TRUE(wide_all_are(first, 1));
      EXPECT_TRUE(wide_all_are(second, 11));
      set.leave();
    });
    if (copies == 0) {
      EXPECT_EQ(updates, 2 * wide_parts) << "all parts had both pushes when the servers were asked";
    }
  }
}

// A server is lost when a few parts have left, and the parts that have not go to the next server.
TEST(WorkerSide, PartsThatHaveNotLeftSurviveALoss) {
  std::latch begun(2);
  run_threads(4, [&](const Communicator& world) {
    ServerSet set = wide_counts(world, {.servers = 2, .part_elements = wide_part, .copies = 1});
    if (world.rank() == 3) {
      begun.wait();
      return world.job().abort("it is killed.");
    }
    if (set.is_server()) return set.serve();
    const Tensor found = wide_filled(0), ones = wide_filled(1);
    for (int step = 1; step <= 2; ++step) {
      const ServerSet::Pending pending = set.push_pull(0, ones, found);
      if (step == 1) begun.count_down();
      set.wait(pending);
      EXPECT_TRUE(wide_all_are(found, 2 * step));
    }
    EXPECT_EQ(set.ranks().size(), 3) << "the control: there was a loss";
    set.leave();
  });
}

// In each turn a worker sends one part to each server, and no two of as many workers begin with the same one.
TEST(WorkerSide, SendsToServersInTurn) {
  run_threads(4, [](const Communicator& world) {
    const ServedLayout layout(world, {{"counts", 12, DType::i64, {}, server_functions::sum()}},
                              {.servers = 2, .part_elements = 1});
    const auto servers_of = [&](int worker) {
      std::vector<int> servers;
      for (const std::size_t p : layout.sending_order(0, worker)) {
        servers.push_back(layout.tables[0].parts[p].servers.front());
      }
      return servers;
    };
    EXPECT_THAT(servers_of(0), testing::ElementsAre(2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3));
    EXPECT_THAT(servers_of(1), testing::ElementsAre(3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2));
  });
}

}  // namespace
}  // namespace stretto
