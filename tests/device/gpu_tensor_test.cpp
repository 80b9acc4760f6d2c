// Tensors and streams of a GPU: the stand-in, whose streams sleep at random, or a real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "device/kernels/kernel_data.hpp"
#include "device/tested_gpu.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(OnTestedGpu, OnDeviceIsOfItsThreadAndNests) {
  EXPECT_EQ(current_device(), Device::cpu);
  {
    const OnDevice outer(Device::cuda);
    EXPECT_EQ(current_device(), Device::cuda);
    const Stream of_outer = computation();
    EXPECT_EQ(Stream("s").device(), Device::cuda);
    std::thread([&] {
      EXPECT_EQ(current_device(), Device::cpu);
      const OnDevice own(Device::cuda);
      EXPECT_NE(computation(), of_outer);
    }).join();
    const Tensor sum = Tensor::of<float>({1, 2});
    {
      const OnDevice host(Device::cpu);
      EXPECT_EQ(current_device(), Device::cpu);
      EXPECT_EQ(Tensor({1}, DType::f32).device(), Device::cpu);
    }
    EXPECT_EQ(computation(), of_outer);
    {  // runs after the outer stream's kernels and before its next ones
      const OnDevice inner(Device::cuda);
      EXPECT_NE(computation(), of_outer);
      kernels::add(sum, sum, sum);
    }
    kernels::add(sum, sum, sum);
    EXPECT_EQ(sum.at(1), 8);
  }
  EXPECT_EQ(current_device(), Device::cpu);
}

TEST_F(OnTestedGpu, TensorsGoToAndFro) {
  const Tensor here = Tensor::of<float>({1, 2, 3});
  const OnDevice device(Device::cuda);
  const Tensor there = here.on(Device::cuda);
  EXPECT_EQ(there.device(), Device::cuda);
  EXPECT_EQ(there.on(Device::cuda).raw(), there.raw());
  EXPECT_THAT(values(there), ElementsAre(1, 2, 3));
  const Tensor twin = there.clone();
  EXPECT_EQ(twin.device(), Device::cuda);
  there.set(1, 7);
  EXPECT_THAT(values(there.on(Device::cpu)), ElementsAre(1, 7, 3));
  EXPECT_THAT(values(twin), ElementsAre(1, 2, 3));
  twin.copy_from(there);
  EXPECT_THAT(values(twin), ElementsAre(1, 7, 3));
  here.copy_from(twin);
  EXPECT_THAT(values(here), ElementsAre(1, 7, 3));
  twin.copy_from(here);
  EXPECT_THAT(values(twin), ElementsAre(1, 7, 3));
  EXPECT_THAT(values(Tensor::zeros({2}, DType::bf16)), ElementsAre(0, 0));
  EXPECT_THAT(values(Tensor::symmetric({2}, DType::f64).view(1, {0})), IsEmpty());
  EXPECT_EQ(Tensor({0}, DType::f32).clone().size(), 0);
  EXPECT_THAT(sentence_of([&] { there.at(3); }), HasSubstr("Element 3"));
}

TEST_F(OnTestedGpu, TensorsCountAsMemory) {
  const std::size_t before = memory_use().bytes;
  {
    const OnDevice device(Device::cuda);
    const Tensor tensor({1000}, DType::f32);
    EXPECT_EQ(memory_use().bytes, before + 4000);
    EXPECT_GE(memory_use().peak_bytes, before + 4000);
    EXPECT_EQ(memory_use(Device::cuda).bytes, 4000U);
    EXPECT_EQ(memory_use(Device::cpu).bytes, before);
  }
  EXPECT_EQ(memory_use().bytes, before);
}

TEST_F(OnTestedGpu, MixedMemoriesAndMissingDevicesAreRefused) {
  const Tensor here = Tensor::zeros({2}, DType::f32);
  EXPECT_THAT(sentence_of([&] { const Tensor there({2}, DType::f32, Device::cuda); }), HasSubstr("computes on the host"));
  EXPECT_THAT(sentence_of([&] { handle_of(Stream::inline_()); }), HasSubstr("belongs to the host"));
  const OnDevice device(Device::cuda);
  const Tensor there = Tensor::zeros({2}, DType::f32);
  EXPECT_THAT(sentence_of([&] { kernels::add(here, there, there); }), HasSubstr("put all of them into one"));
  const OnDevice host(Device::cpu);
  EXPECT_THAT(sentence_of([&] { kernels::add(there, there, there); }), HasSubstr("computes on the host"));
}

TEST_F(OnTestedGpu, AReservedWorkIsRefusedUntilItHasATask) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const Work reserved = Work::reserve();
  EXPECT_THAT(sentence_of([&] { stream.wait(reserved); }), HasSubstr("before it was put into a stream"));
  stream.enqueue([] {}, reserved);
  stream.wait(reserved);
  reserved.wait();
}

// A tensor keeps the GPU's stream alive, but not the queue of tasks, one of which may hold the tensor.
TEST_F(OnTestedGpu, ATaskMayHoldTensorsOfItsOwnStream) {
  const OnDevice device(Device::cuda);
  const Tensor tensor = Tensor::zeros({4}, DType::f32);
  computation().enqueue([tensor] {});
}

// Each stream's kernels see the results of the other's, without a wait on the host.
TEST_F(OnTestedGpu, StreamsHandResultsToEachOther) {
  const OnDevice device(Device::cuda);
  const Stream other("other", Priority::urgent);
  const Tensor sum = Tensor::of<float>(std::vector<float>(200'000, 1));
  const Tensor twice = Tensor::zeros(sum.shape(), sum.dtype());
  for (int round = 0; round < 10; ++round) {
    kernels::add(sum, sum, twice);
    other.wait(computation());
    const Work halved = other.enqueue([&] {
      kernels::add(twice, twice, twice);
      kernels::scale(twice, 0.5);
    });
    computation().wait(halved);
    kernels::add(twice, sum, sum);
    kernels::scale(sum, 0.5);  // 1.5 times its earlier value
  }
  EXPECT_EQ(static_cast<float>(sum.at(0)), 57.6650390625F);
  EXPECT_EQ(sum.at(199'999), sum.at(0));
}

// Memory is reused by later tensors in stream order, while the host is far ahead.
TEST_F(OnTestedGpu, MemoryIsUsedAgainOnlyBehindItsLastUse) {
  const OnDevice device(Device::cuda);
  std::vector<Tensor> kept;
  for (int round = 0; round < 40; ++round) {
    const Tensor one = Tensor::of<float>(std::vector<float>(30'000, static_cast<float>(round)));
    const Tensor passing = Tensor::zeros(one.shape(), one.dtype());
    kernels::add(one, one, passing);
    kept.push_back(Tensor(one.shape(), one.dtype()));
    kernels::add(passing, one, kept.back());
  }
  for (int round = 0; round < 40; ++round) EXPECT_EQ(kept[static_cast<std::size_t>(round)].at(29'999), 3 * round);
}

TEST_F(OnTestedGpu, WorksHaveTimesInTheOrderOfTheirStream) {
  const OnDevice device(Device::cuda);
  const Tensor x = Tensor::zeros({1'000'000}, DType::f32);
  const auto work = [&] {
    return computation().enqueue([&] {
      for (int i = 0; i < 20; ++i) kernels::add(x, x, x);
    });
  };
  const Work first = work();
  const Work second = work();
  second.wait();
  EXPECT_TRUE(first.done());
  EXPECT_GT(first.times().done, first.times().started);
  // Times on one stream are exact to half a microsecond; nothing is promised between two streams.
  EXPECT_GE(second.times().started, first.times().done - 1e-6);
  EXPECT_GT(second.times().done, second.times().started);
}

}  // namespace
}  // namespace stretto
