// Plans are kept, and forgotten when the costs change by which they were chosen.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "collectives/communicator/group.hpp"
#include "stretto/stretto.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

constexpr std::int64_t elements = 1000;

Method method_of_next_call(const Communicator& world) {
  const Tensor x = Tensor::zeros({elements}, DType::f32);
  return world.prepare({.collective = Collective::all_reduce, .input = x.raw(), .output = x.raw(), .count = elements})
      .method();
}

Algorithm algorithm_of_call(const Communicator& world) {
  std::vector<float> ones(elements, 1);
  world.all_reduce(ones.data(), ones.data(), elements, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
  EXPECT_EQ(ones, std::vector<float>(elements, static_cast<float>(world.size())));
  return world.job().ledger().records().back().method.algorithm;
}

void learn_ring(const Communicator& world) {
  Selector& selector = Communicator::Group::of(world).context().selector();
  selector.learn(
      fmt::format(R"({{"routes": [{{"route": "shm", "ranks": {}, "ranks_per_core": {}, "alpha_us": 1, "overhead_us": 1,
 "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0, "table": "all_reduce:0-inf:ring", "symmetric_table": "all_reduce:0-inf:ring"}}]}})",
                  world.size(), selector.ranks_per_core()),
      "the test");
}

// Messages of more lengths than a planner keeps plans (256).
void exchange_messages(const Communicator& world, int from, int to) {
  std::vector<float> data(300);
  for (std::int64_t length = 1; length <= 300; ++length) {
    if (world.rank() == from) world.send(data.data(), length, DType::f32, to, Stream::inline_()).wait();
    if (world.rank() == to) world.recv(data.data(), length, DType::f32, from, Stream::inline_()).wait();
  }
}

TEST(CallPlanner, RanksThatKeptUnequallyManyPlansAgreeOnceTheyAreForgotten) {
  run_threads(3, [](const Communicator& world) {
    const Method before = method_of_next_call(world);
    EXPECT_NE(before, Method(Algorithm::ring));
    EXPECT_EQ(algorithm_of_call(world), before.algorithm);
    learn_ring(world);
    exchange_messages(world, 0, 1);
    EXPECT_EQ(method_of_next_call(world), world.rank() == 2 ? before : Method(Algorithm::ring));  // a call now would hang
    Communicator::Group::of(world).forget_plans();
    EXPECT_EQ(algorithm_of_call(world), Algorithm::ring);
  });
}

// STRETTO_EXPLAIN: a line for a call, which names each method once: that of the choice, and those that come behind it.
TEST(CallPlanner, ExplainsAChoiceOnce) {
  const Variable explains("STRETTO_EXPLAIN", "1");
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  testing::internal::CaptureStderr();
  run_threads(4, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({1 << 20}, DType::f32);
    world.all_reduce(x, ReduceOp::sum, Stream::inline_()).wait();
  });
  std::istringstream said(testing::internal::GetCapturedStderr());
  std::multiset<std::string> methods;
  int lines = 0;
  for (std::string line; std::getline(said, line);) {
    if (line.find("all_reduce of 1048576") == std::string::npos) continue;
    ++lines;
    std::istringstream words(line.substr(line.find("': ") + 3));
    for (std::string word; words >> word;) {
      if (word.rfind("two_level(", 0) == 0) methods.insert(word.substr(0, word.find(',')));
    }
  }
  EXPECT_EQ(lines, 1);
  EXPECT_GE(methods.size(), 2U);
  EXPECT_EQ(methods.size(), std::set<std::string>(methods.begin(), methods.end()).size());
}

}  // namespace
}  // namespace stretto
