// Calls on GPUs: the device of a call's buffers, the check of a call, and its estimated cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/gpu_buffers.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using oracle::Problem;
using testing::HasSubstr;

class CallsOnGpus : public testing::TestWithParam<Route> {
 protected:
  JobOnGpus ranks_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, CallsOnGpus, testing::ValuesIn(all_routes),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// The pointer of a rank without elements does not tell where the other ranks' buffers lie.
TEST_P(CallsOnGpus, RanksWithoutElementsTakePart) {
  ranks_.run(3, [](const Communicator& world) {
    const std::vector<std::int64_t> counts{3, 0, 2};
    const std::int64_t mine = counts[static_cast<std::size_t>(world.rank())];
    const Tensor ones({mine}, DType::f32, Device::cpu);
    for (std::int64_t i = 0; i < mine; ++i) ones.set(i, world.rank() + 1);
    const Tensor input = ones.on(Device::cuda);
    const Tensor all = Tensor::zeros({5}, DType::f32);
    std::vector<float> elsewhere(1);
    for (const void* nothing : {static_cast<const void*>(nullptr), static_cast<const void*>(elsewhere.data())}) {
      const void* const gives = mine == 0 ? nothing : input.raw();
      void* const takes = world.rank() == 0 ? all.raw() : const_cast<void*>(nothing);
      world.gather_v(gives, takes, counts, DType::f32, 0, computation()).wait();
      if (world.rank() == 0) {
        EXPECT_EQ(all.at(2), 1);
        EXPECT_EQ(all.at(4), 3);
      }
      const Tensor back = Tensor::zeros({mine}, DType::f32);
      world.scatter_v(takes, mine == 0 ? const_cast<void*>(nothing) : back.raw(), counts, DType::f32, 0, computation())
          .wait();
      if (mine > 0) {
        EXPECT_EQ(back.at(1), world.rank() + 1);
      }
    }
    world.all_reduce(nullptr, nullptr, 0, DType::f32, ReduceOp::sum, computation()).wait();
  });
}

TEST_P(CallsOnGpus, AreCheckedForTheDevice) {
  ranks_.run(2, [route = GetParam()](const Communicator& world) {
    const Call call{.collective = Collective::all_reduce, .count = 100};
    const OperationOptions by_nccl{.method = Algorithm::nccl};
    EXPECT_EQ(sentence_of([&] { world.check(call, by_nccl); }), "");  // the route is not known yet
    EXPECT_THAT(sentence_of([&] { world.check(call, {.method = Algorithm::packet}); }), HasSubstr("lie on GPUs"));
    EXPECT_EQ(sentence_of([&] { world.check(call, {.method = Algorithm::ring}); }), "");
    const Tensor x = Tensor::zeros({100}, DType::f32);
    world.all_reduce(x, ReduceOp::sum, computation()).wait();
    const std::string known = sentence_of([&] { world.check(call, by_nccl); });
    if (route == Route::nccl) {
      EXPECT_EQ(known, "");
    } else {
      EXPECT_THAT(known, HasSubstr("does not do this call"));
    }
    const Tensor on_host({100}, DType::f32, Device::cpu);
    Call there = call;
    there.input = there.output = on_host.raw();
    EXPECT_THAT(sentence_of([&] { world.check(there, by_nccl); }), HasSubstr("do not lie on GPUs"));
    const OnDevice host(Device::cpu);
    EXPECT_THAT(sentence_of([&] { world.check(call, by_nccl); }), HasSubstr("do not lie on GPUs"));
    there.input = there.output = x.raw();
    EXPECT_EQ(sentence_of([&] { world.check(there, {.method = Algorithm::ring}); }), "");
  });
}

// Without measurements, a GPU's route is assumed to cost 12 us a round; NCCL's own collective costs little more than one
// round.
TEST_P(CallsOnGpus, AreEstimatedForTheDevice) {
  ranks_.run(4, [route = GetParam()](const Communicator& world) {
    const Call small{.collective = Collective::all_reduce, .count = 1};
    const OperationOptions ring{.method = Algorithm::ring};
    EXPECT_NEAR(world.estimate(small, ring).seconds, 6 * 12e-6, 1e-6);
    const Tensor x = Tensor::zeros({1}, DType::f32);
    world.all_reduce(x, ReduceOp::sum, computation()).wait();
    EXPECT_NEAR(world.estimate(small, ring).seconds, 6 * 12e-6, 1e-6);
    if (route == Route::nccl) {
      EXPECT_LT(world.estimate(small).seconds, 6 * 12e-6 / 3);
    }
    double on_host = 0;
    {
      const OnDevice host(Device::cpu);
      on_host = world.estimate(small, ring).seconds;
    }
    EXPECT_NE(on_host, world.estimate(small, ring).seconds);
  });
}

}  // namespace
}  // namespace stretto
