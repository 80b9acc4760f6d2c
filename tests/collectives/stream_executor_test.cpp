// Every plan in a GPU's stream: ranks are threads, and share one GPU (where messages are copies) or have one each (where
// they are NCCL's). GPUs and NCCL are a stand-in that holds its callers to their rules, or real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../variables.hpp"
#include "oracle.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "stretto/device.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

using oracle::Buffers;
using oracle::Problem;
using testing::HasSubstr;

// A problem's buffers in a GPU's memory.
class GpuBuffers {
 public:
  GpuBuffers(const Problem& problem, int rank, bool in_place)
      : here_(problem, rank, in_place), there_({static_cast<std::int64_t>(here_.memory().size())}, DType::u8, Device::cuda) {
    there_.copy_from_host(here_.memory().data());
  }
  Call call() const {
    Call call = here_.call_in(static_cast<std::byte*>(there_.raw()));
    call.keep_alive = there_;
    return call;
  }
  std::string fault() {
    there_.copy_to_host(here_.memory().data());
    return here_.fault();
  }

 private:
  Buffers here_;
  Tensor there_;
};

void expect_right(const Communicator& group, const Problem& problem, const Method& method, const Stream& stream) {
  for (const bool in_place : {false, true}) {
    if (in_place && !can_be_in_place(problem.collective)) continue;
    GpuBuffers buffers(problem, group.rank(), in_place);
    OperationOptions options;
    options.method = method;
    options.factor = problem.factor(group.rank());
    computation().wait(group.start(buffers.call(), stream, options));
    ASSERT_EQ(buffers.fault(), "") << name(problem.collective) << " by " << to_string(method) << " of " << problem.count
                                   << " " << name(problem.dtype) << " (" << name(problem.op) << ") over " << group.size()
                                   << (in_place ? ", in place" : "");
  }
}

std::vector<Method> methods_of(Collective collective, bool on_nodes) {
  std::vector<Method> methods{Algorithm::automatic};
  for (const Algorithm algorithm : algorithms_for(collective)) {
    if (shares_memory(algorithm)) continue;
    Method method(algorithm);
    if (needs_nodes(algorithm)) {
      if (!on_nodes) continue;
      method.inside = method.between = algorithms_for(collective).front();
      if (algorithm == Algorithm::three_level) method.above = method.inside;
    }
    methods.push_back(method);
    if (takes_lanes(algorithm)) method.lanes = 2;
    if (takes_pieces(algorithm)) method.pieces = 3;
    if (method != Method(algorithm)) methods.push_back(method);
  }
  return methods;
}

struct Case {
  Collective collective;
  bool one_gpu_each;
};
class EveryPlanInAStream : public testing::TestWithParam<Case> {
 protected:
  JobOnGpus ranks_{GetParam().one_gpu_each};
  void SetUp() override {
    if (const std::string obstacle = ranks_.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};

std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (int i = 0; i < static_cast<int>(Collective::barrier); ++i) {
    for (const bool one_each : {false, true}) cases.push_back({static_cast<Collective>(i), one_each});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, EveryPlanInAStream, testing::ValuesIn(every_case()), [](const auto& parameter) {
  return std::string(name(parameter.param.collective)) + (parameter.param.one_gpu_each ? "_nccl" : "_copies");
});

TEST_P(EveryPlanInAStream, EqualsTheOracle) {
  const Collective collective = GetParam().collective;
  for (int size = 1; size <= ranks_.most_ranks(); ++size) {
    ranks_.run(size, [&](const Communicator& world) {
      const Stream stream("communication");
      for (const Method& method : methods_of(collective, false)) {
        for (const std::int64_t count : {0, 1, 250}) {
          Problem problem{collective, size, count};
          problem.root = size / 2;
          expect_right(world, problem, method, stream);
        }
      }
    });
  }
}

TEST_P(EveryPlanInAStream, KnowsEveryTypeAndOperation) {
  const Collective collective = GetParam().collective;
  ranks_.run(std::min(3, ranks_.most_ranks()), [&](const Communicator& world) {
    for (const Method& method : methods_of(collective, false)) {
      for (const DType dtype : oracle::all_dtypes) {
        for (const ReduceOp op : reduces(collective) ? oracle::all_ops : std::vector{ReduceOp::sum}) {
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

class InAStream : public testing::TestWithParam<bool> {
 protected:
  JobOnGpus ranks_{GetParam()};
  void SetUp() override {
    if (const std::string obstacle = ranks_.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};
INSTANTIATE_TEST_SUITE_P(All, InAStream, testing::Bool(),
                         [](const auto& parameter) { return std::string(parameter.param ? "nccl" : "copies"); });

TEST_P(InAStream, QuantizedCollectivesGiveTheHostsBits) {
  ranks_.run(std::min(4, ranks_.most_ranks()), [](const Communicator& world) {
    for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8}) {
      OperationOptions options;
      options.quantization.format = format;
      const Tensor here({5000}, DType::f32, Device::cpu);
      for (std::int64_t i = 0; i < here.size(); ++i) here.set(i, std::sin(static_cast<double>(i * 7 + world.rank() * 13)));
      const Tensor there = here.on(Device::cuda);
      world.all_reduce(here, ReduceOp::sum, Stream::inline_(), options);
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
      world.send(out.raw(), 100, DType::f32, peer, stream);
      world.recv(received.back().raw(), 100, DType::f32, peer, stream);
    }
    computation().wait(group.end());
    for (int peer = 0; peer < world.size(); ++peer) {
      EXPECT_EQ(received[static_cast<std::size_t>(peer)].at(7), peer * 1000 + world.rank() * 100 + 7);
    }
  });
}

// What is computed before is communicated, and what is communicated is there for what is computed after, without a wait of
// the host's.
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

// Ranks that share a GPU meet on the host, which a graph cannot: only NCCL's messages can be part of one.
TEST(InAGraph, ACollectiveIsLaunchedAgainAndAgain) {
  JobOnGpus ranks(true);
  if (const std::string obstacle = ranks.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  ranks.run(std::min(3, ranks.most_ranks()), [](const Communicator& world) {
    for (const Method& method : {Method(Algorithm::ring), Method(Algorithm::nccl), Method(Algorithm::two_shot)}) {
      const Stream stream("communication");
      const Tensor x({999}, DType::bf16);
      const Tensor ones({999}, DType::bf16, Device::cpu);
      for (int i = 0; i < 999; ++i) ones.set(i, 1);
      x.copy_from(ones);
      // Once before: the communicator joins the GPUs, and the operation is planned.
      const Operation sum =
          world.prepare({Collective::all_reduce, x.raw(), x.raw(), x.size(), x.dtype()}, {.method = method});
      sum.start(stream).wait();
      const Graph graph(stream, [&] { sum.start(computation()); });
      for (int launches = 0; launches < 3; ++launches) graph.launch(stream).wait();
      EXPECT_EQ(x.at(998), std::pow(world.size(), 4)) << to_string(method);
    }
  });
}

TEST_P(InAStream, TheLedgerKnowsWhenTheGpuDidIt) {
  ranks_.run(std::min(2, ranks_.most_ranks()), [](const Communicator& world) {
    const Tensor x = Tensor::zeros({1000}, DType::f32);
    world.all_reduce(x, ReduceOp::sum, Stream("communication"), {.method = Algorithm::ring, .tag = "here"}).wait();
    const Record record = world.ledger().records().back();
    EXPECT_EQ(record.tag, "here");
    EXPECT_EQ(record.bytes_sent, world.size() == 1 ? 0 : 4000);
    EXPECT_GT(record.times.done, record.times.started);
  });
}

TEST_P(InAStream, BuffersOnBothSidesAreRefused) {
  ranks_.run(std::min(2, ranks_.most_ranks()), [](const Communicator& world) {
    const Tensor here = Tensor({10}, DType::f32, Device::cpu);
    const Tensor there = Tensor::zeros({10}, DType::f32);
    try {
      world.all_reduce(here.raw(), there.raw(), 10, DType::f32, ReduceOp::sum, computation());
      ADD_FAILURE() << "was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("one buffer in a GPU's memory and one in the host's"));
    }
    EXPECT_THROW(world.all_reduce(there, ReduceOp::sum, Stream::inline_()), Error);
  });
}

}  // namespace
}  // namespace stretto
