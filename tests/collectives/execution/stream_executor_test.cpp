// Every plan in a GPU's stream. Ranks are threads. They share one GPU (messages are copies, or go through blocks of its
// memory or the host's) or have one each (messages go over NCCL). GPUs and NCCL are real, or stand-ins that report broken
// rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "collectives/gpu_buffers.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using oracle::Problem;
using testing::HasSubstr;

constexpr auto& expect_right = oracle::expect_right<GpuBuffers>;

std::vector<Method> methods_of(Collective collective, bool on_nodes) {
  return oracle::methods_of(collective, on_nodes, Device::cuda);
}

struct Case {
  Collective collective;
  Route route;
};
class EveryPlanInAStream : public testing::TestWithParam<Case> {
 protected:
  JobOnGpus ranks_{GetParam().route};
  void SetUp() override {
    if (const std::string obstacle = ranks_.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};

std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (int i = 0; i < static_cast<int>(Collective::barrier); ++i) {
    for (const Route route : all_routes) {
      // By default and daily two routes: the one whose messages another library carries, and the one that carries them
      // through the host.
      if ((!all_tests() || daily_tests()) && route != Route::nccl && route != Route::staged) continue;
      cases.push_back({static_cast<Collective>(i), route});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, EveryPlanInAStream, testing::ValuesIn(every_case()), [](const auto& parameter) {
  return std::string(name(parameter.param.collective)) + "_" + name(parameter.param.route);
});

TEST_P(EveryPlanInAStream, EqualsTheOracle) {
  const Collective collective = GetParam().collective;
  for (int size = 1; size <= ranks_.most_ranks(); ++size) {
    ranks_.run(size, [&](const Communicator& world) {
      const Stream stream("communication");
      for (const Method& method : methods_of(collective, false)) {
        for (const std::int64_t count : {0, 1, 7, 250}) {  // with 7 elements, some lanes have no part of some shares
          Problem problem{collective, size, count};
          problem.root = size / 2;
          expect_right(world, problem, method, stream);
        }
      }
    });
  }
}

// The routes take turns: every method gets every type with every operation on one of those that the program tests, and each
// route gets a part of the types with every method.
TEST_P(EveryPlanInAStream, KnowsEveryTypeAndOperation) {
  const Collective collective = GetParam().collective;
  const std::vector<Case> cases = every_case();
  const auto routes = static_cast<std::size_t>(
      std::ranges::count_if(cases, [&](const Case& each) { return each.collective == collective; }));
  const auto mine = static_cast<std::size_t>(std::ranges::count_if(
      cases, [&](const Case& each) { return each.collective == collective && each.route < GetParam().route; }));
  ranks_.run(std::min(3, ranks_.most_ranks()), [&](const Communicator& world) {
    std::size_t turn = 0;
    for (const Method& method : methods_of(collective, false)) {
      ++turn;  // or a number of types that the routes divide would give a route the same ones with each method
      for (const DType dtype : oracle::all_dtypes) {
        for (const ReduceOp op : reduces(collective) ? oracle::all_ops : std::vector{ReduceOp::sum}) {
          if (turn++ % routes != mine) continue;
          expect_right(world, {collective, world.size(), 37, dtype, op}, method, computation());
        }
      }
    }
  });
}

TEST_P(EveryPlanInAStream, RunsOnVirtualNodes) {
  const Collective collective = GetParam().collective;
  if (ranks_.most_ranks() < 8) GTEST_SKIP() << "There are not as many GPUs as ranks.";
  const Variable ranks_per_node("STRETTO_RANKS_PER_NODE", "2");
  const Variable nodes_per_pod("STRETTO_NODES_PER_POD", "2");
  ranks_.run(8, [&](const Communicator& world) {
    for (const Method& method : methods_of(collective, true)) {
      if (!needs_nodes(method.algorithm)) continue;
      for (const std::int64_t count : {1, 400}) {
        Problem problem{collective, 8, count, DType::f64};
        problem.root = 3;
        expect_right(world, problem, method, computation());
      }
    }
  });
}

class InAStream : public testing::TestWithParam<Route> {
 protected:
  JobOnGpus ranks_{GetParam()};
  void SetUp() override {
    if (const std::string obstacle = ranks_.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};
INSTANTIATE_TEST_SUITE_P(All, InAStream, testing::ValuesIn(all_routes),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST_P(InAStream, QuantizedCollectivesGiveTheHostsBits) {
  ranks_.run(std::min(4, ranks_.most_ranks()), [](const Communicator& world) {
    for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8}) {
      OperationOptions options;
      options.quantization.format = format;
      const Tensor here({5000}, DType::f32, Device::cpu);
      for (std::int64_t i = 0; i < here.size(); ++i) here.set(i, std::sin(static_cast<double>(i * 7 + world.rank() * 13)));
      const Tensor there = here.on(Device::cuda);
      world.all_reduce(here, ReduceOp::sum, Stream::inline_(), options).wait();
      computation().wait(world.all_reduce(there, ReduceOp::sum, Stream("communication"), options));
      const Tensor back = there.on(Device::cpu);
      for (std::int64_t i = 0; i < here.size(); ++i) ASSERT_EQ(here.at(i), back.at(i)) << name(format) << " " << i;
    }
  });
}

TEST_P(InAStream, MessagesOfAGroupGoTogether) {
  ranks_.run(std::min(4, ranks_.most_ranks()), [](const Communicator& world) {
    const Stream stream("communication");
    std::vector<Tensor> sent, received;
    OperationGroup group;
    for (int peer = 0; peer < world.size(); ++peer) {
      const Tensor out({100}, DType::f32);
      const Tensor data({100}, DType::f32, Device::cpu);
      for (int i = 0; i < 100; ++i) data.set(i, world.rank() * 1000 + peer * 100 + i);
      out.copy_from(data);
      sent.push_back(out);
      received.push_back(Tensor({100}, DType::f32));
      std::ignore = world.send(out.raw(), 100, DType::f32, peer, stream);
      std::ignore = world.recv(received.back().raw(), 100, DType::f32, peer, stream);
    }
    computation().wait(group.end());
    for (int peer = 0; peer < world.size(); ++peer) {
      EXPECT_EQ(received[static_cast<std::size_t>(peer)].at(7), peer * 1000 + world.rank() * 100 + 7);
    }
  });
}

// Communication sees the results of earlier computation, and later computation sees its results, without a wait on the host.
TEST_P(InAStream, CommunicationFollowsComputationAndIsFollowedByIt) {
  JobOnGpus slow(GetParam(), {.longest_delay_us = 400});
  slow.run(std::min(2, slow.most_ranks()), [](const Communicator& world) {
    const Stream stream("communication");
    const Tensor x({1000}, DType::f32), y({1000}, DType::f32), z({1000}, DType::f32);
    const Tensor ones({1000}, DType::f32, Device::cpu);
    for (int i = 0; i < 1000; ++i) ones.set(i, 1);
    x.copy_from(ones);
    for (int round = 0; round < 10; ++round) {
      kernels::add(x, x, y);
      const Work sum = world.all_reduce(y, ReduceOp::sum, stream);
      computation().wait(sum);
      kernels::add(y, x, z);
    }
    EXPECT_EQ(z.at(999), 2 * world.size() + 1);
  });
}

// Ranks that share a GPU need the host for their messages, which a graph cannot hold; only NCCL's messages can be captured.
TEST(InAGraph, ACollectiveIsLaunchedAgainAndAgain) {
  JobOnGpus ranks(Route::nccl);
  if (const std::string obstacle = ranks.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  ranks.run(std::min(3, ranks.most_ranks()), [](const Communicator& world) {
    for (const Method& method : {Method(Algorithm::ring), Method(Algorithm::nccl), Method(Algorithm::two_shot)}) {
      const Stream stream("communication");
      const Tensor x({999}, DType::bf16);
      const Tensor ones({999}, DType::bf16, Device::cpu);
      for (int i = 0; i < 999; ++i) ones.set(i, 1);
      x.copy_from(ones);
      // The operation runs once before: the communicator connects the GPUs, and the operation is planned.
      const Operation sum =
          world.prepare({Collective::all_reduce, x.raw(), x.raw(), x.size(), x.dtype()}, {.method = method});
      sum.start(stream).wait();
      const Graph graph(stream, [&] { std::ignore = sum.start(computation()); });
      for (int launches = 0; launches < 3; ++launches) graph.launch(stream).wait();
      EXPECT_EQ(x.at(998), std::pow(world.size(), 4)) << to_string(method);
    }
  });
}

TEST_P(InAStream, TheLedgerKnowsWhenTheGpuDidIt) {
  ranks_.run(std::min(2, ranks_.most_ranks()), [](const Communicator& world) {
    const Tensor x = Tensor::zeros({1000}, DType::f32);
    world.all_reduce(x, ReduceOp::sum, Stream("communication"), {.method = Algorithm::ring, .tag = "here"}).wait();
    const Record record = world.job().ledger().records().back();
    EXPECT_EQ(record.tag, "here");
    EXPECT_EQ(record.bytes_sent, world.size() == 1 ? 0 : 4000);
    EXPECT_GE(record.times.done, record.times.started);
    if (world.size() > 1) {
      EXPECT_GT(record.times.done, record.times.started);
    }
  });
}

TEST_P(InAStream, BuffersOnBothSidesAreRefused) {
  ranks_.run(std::min(2, ranks_.most_ranks()), [](const Communicator& world) {
    const Tensor here = Tensor({10}, DType::f32, Device::cpu);
    const Tensor there = Tensor::zeros({10}, DType::f32);
    const auto mixed = [&] {
      std::ignore = world.all_reduce(here.raw(), there.raw(), 10, DType::f32, ReduceOp::sum, computation());
    };
    EXPECT_THAT(sentence_of(mixed), HasSubstr("one buffer in a GPU's memory and one in the host's"));
    EXPECT_THROW(world.all_reduce(there, ReduceOp::sum, Stream::inline_()), Error);
  });
}

}  // namespace
}  // namespace stretto
