// A push_pull() of all workers is an all-reduce: the routes of the ranks of a set are plans, which the verifier proves.
#include "server/parts/push_pull_plan.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "stretto/launch.hpp"
#include "stretto/planning/proof.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

struct Routes {
  std::vector<std::vector<Plan>> plans;       // by server, then by worker, and the server's own
  std::vector<int> at_worker, at_server;      // by element: the server of the first worker's part, and that which has it
  std::vector<std::uint64_t> sent;            // by rank: bytes of a push_pull()
  std::vector<std::vector<std::int64_t>> of;  // by worker: what it got
};

// Of a set in which each worker has pushed ones, and what its servers say that they hold.
Routes routes_of(int workers, const ServerSet::Options& options, std::int64_t elements) {
  Routes routes;
  routes.plans.resize(static_cast<std::size_t>(options.servers), std::vector<Plan>(static_cast<std::size_t>(workers) + 1));
  routes.at_server.resize(static_cast<std::size_t>(elements), -1);
  routes.sent.resize(static_cast<std::size_t>(workers + options.servers));
  routes.of.resize(static_cast<std::size_t>(workers));
  std::mutex mutex;
  run_threads(workers + options.servers, [&](const Communicator& world) {
    ServerSet set(world, {{"counts", elements, DType::i64, {}, server_functions::sum()}}, options);
    const auto rank = static_cast<std::size_t>(world.rank());
    for (int server = workers; server < world.size(); ++server) {
      if (set.is_server() && server != world.rank()) continue;
      routes.plans[static_cast<std::size_t>(server - workers)][std::min(rank, static_cast<std::size_t>(workers))] =
          set.push_pull_plan(0, server);
    }
    const auto hold = [&](const ServerSet::Question& question) {
      const std::lock_guard lock(mutex);
      for (const ServerSet::HeldPart& part : question.parts) {
        for (std::int64_t i = part.first; i < part.first + part.values.size() && !part.is_copy; ++i) {
          EXPECT_EQ(std::exchange(routes.at_server[static_cast<std::size_t>(i)], world.rank()), -1) << "two servers have it";
        }
      }
      routes.sent[rank] = set.traffic().payload;
      return std::string();
    };
    if (set.is_server()) return set.serve(hold);
    const Tensor ones({elements}, DType::i64), sums({elements}, DType::i64);
    std::fill_n(ones.data<std::int64_t>(), elements, 1);
    set.wait(set.push_pull(0, ones, sums));
    routes.sent[rank] = set.traffic().payload;
    routes.of[rank].assign(sums.data<std::int64_t>(), sums.data<std::int64_t>() + elements);
    if (world.rank() == 0) {
      for (std::int64_t i = 0; i < elements; ++i) routes.at_worker.push_back(set.server_of(0, i));
      set.ask("what");
    }
    set.leave();
  });
  return routes;
}

std::optional<std::string> fault_of(const std::vector<Plan>& plans) {
  const std::optional<std::string> fault = verify(plans, false);
  return fault ? fault : verify(plans, true);
}

// Each server's part of a push_pull() is proved, and together they are all elements, each at the server to which workers
// send it and no other. What ranks have sent is what the plans say, so that the plans are those of the calls.
TEST(PushPullPlan, RoutesOfAllRanksAreProvedAllReduces) {
  for (const int workers : {1, 2, 3, 5}) {
    for (const int servers : {1, 2, 3, 4}) {
      for (const std::int64_t elements : {1, 40, 97}) {
        const Routes routes = routes_of(workers, {.servers = servers, .part_elements = 10}, elements);
        SCOPED_TRACE(testing::Message() << workers << " workers, " << servers << " servers, " << elements << " elements");
        EXPECT_EQ(routes.at_server, routes.at_worker);
        std::vector<std::uint64_t> sent(routes.sent.size());
        std::int64_t all = 0;
        for (std::size_t server = 0; server < routes.plans.size(); ++server) {
          const std::vector<Plan>& plans = routes.plans[server];
          const std::int64_t its = plans.front().request.count;
          all += its;
          if (its > 0) {
            EXPECT_EQ(fault_of(plans), std::nullopt);
          }
          for (std::size_t rank = 0; rank < plans.size(); ++rank) {
            const bool is_worker = rank + 1 < plans.size();
            sent[is_worker ? rank : rank + server] += static_cast<std::uint64_t>(plans[rank].bytes_sent(8));
          }
        }
        EXPECT_EQ(all, elements);
        EXPECT_EQ(sent, routes.sent);
        for (const auto& sums : routes.of) EXPECT_THAT(sums, testing::Each(workers));
      }
    }
  }
}

// The controls: routes that do not fit together, and a sum without one of the pushes.
TEST(PushPullPlan, TheVerifierRefusesOtherRoutes) {
  const std::vector<std::int64_t> parts{4, 3, 5};
  std::vector<Plan> plans;
  for (int rank = 0; rank <= 3; ++rank) plans.push_back(push_pull_plan(rank, 3, parts));
  ASSERT_EQ(fault_of(plans), std::nullopt);

  std::vector<Plan> swapped = plans;
  swapped[1] = push_pull_plan(1, 3, {3, 4, 5});
  EXPECT_NE(fault_of(swapped), std::nullopt) << "a worker that sends the server's parts in another order";
  std::vector<Plan> fewer = plans;
  fewer[2] = push_pull_plan(2, 3, {4, 3});
  EXPECT_NE(fault_of(fewer), std::nullopt) << "a worker that takes a part to another server";
  std::vector<Plan> without = plans;
  for (Step& step : without[3].lanes.front().steps) {
    if (step.kind != StepKind::reduce || step.finishes) continue;
    step.source.count -= step.destination.count;
    break;
  }
  EXPECT_NE(fault_of(without), std::nullopt) << "a server that leaves a push out";
}

TEST(PushPullPlan, RefusesWhatHasNone) {
  run_threads(3, [](const Communicator& world) {
    ServerSet set(world,
                  {{"dense", 8, DType::f32, {}, server_functions::sum()},
                   {.name = "sparse", .dtype = DType::f32, .update = server_functions::sum(), .width = 1}},
                  {.servers = 2});
    EXPECT_THAT(sentence_of([&] { set.push_pull_plan(1, 1); }), HasSubstr("Table sparse is sparse"));
    EXPECT_THAT(sentence_of([&] { set.push_pull_plan(0, 0); }), HasSubstr("Rank 0 is no server"));
    if (set.is_server()) {
      EXPECT_THAT(sentence_of([&] { set.push_pull_plan(0, 3 - world.rank()); }), HasSubstr("takes no part"));
      return set.serve();
    }
    set.leave();
  });
}

}  // namespace
}  // namespace stretto
