// Graphs of a GPU: the stand-in, or a real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

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

TEST_F(OnTestedGpu, AGraphComputesTheSameAtEachLaunch) {
  const OnDevice device(Device::cuda);
  const Stream other("other");
  const Tensor sum = Tensor::of<float>({1, 2});
  const Tensor one = Tensor::of<float>({1, 1});
  Tensor doubled;
  const Graph graph(computation(), [&] {
    kernels::add(sum, one, sum);
    other.wait(computation());
    other.enqueue([&] {
      doubled = Tensor({2}, DType::f32);  // belongs to the graph
      kernels::add(sum, sum, doubled);
    });
    computation().wait(other);
    for (int i = 0; i < 3; ++i) {
      const Tensor passing = Tensor::zeros({2}, DType::f32);
      kernels::add(passing, doubled, passing);
      kernels::add(one, passing, doubled);
    }
  });
  EXPECT_THAT(values(sum), ElementsAre(1, 2));
  for (int i = 0; i < 3; ++i) graph.launch(computation());
  EXPECT_THAT(values(sum), ElementsAre(4, 5));
  EXPECT_THAT(values(doubled), ElementsAre(11, 13));
  const Work elsewhere = graph.launch(other);
  elsewhere.wait();
  EXPECT_THAT(values(sum), ElementsAre(5, 6));
}

TEST_F(OnTestedGpu, AGraphKeepsWhatItUsed) {
  const OnDevice device(Device::cuda);
  const Tensor sum = Tensor::zeros({2}, DType::f32);
  Tensor replaced = Tensor::of<float>({1, 2});
  const Graph graph = [&] {
    const Tensor held = Tensor::of<float>({3, 4});
    return Graph(computation(), [&replaced, sum, held] {
      kernels::add(sum, held, sum);
      kernels::add(sum, replaced, sum);
      replaced = {};  // the last copy
    });
  }();
  const Tensor others = Tensor::zeros({2}, DType::f32);  // would reuse the memory
  graph.launch(computation());
  graph.launch(computation());
  EXPECT_THAT(values(sum), ElementsAre(8, 12));
}

TEST_F(OnTestedGpu, WhatBecamePartOfAGraphCannotBeWaitedFor) {
  const OnDevice device(Device::cuda);
  const Stream other("other");
  const Work before = other.enqueue([] {});
  Work part;
  const Graph graph(computation(), [&] {
    part = computation().enqueue([] {});
    EXPECT_FALSE(part.done());
    EXPECT_THAT(sentence_of([&] { part.wait(); }), HasSubstr("part of a graph"));
    EXPECT_THAT(sentence_of([&] { before.wait(); }), HasSubstr("records a graph"));
    before.done();
    EXPECT_THAT(sentence_of([&] { Stream("new"); }), HasSubstr("make it before"));
    EXPECT_THAT(sentence_of([&] { Graph(other, [] {}); }), HasSubstr("inside another"));
  });
  EXPECT_FALSE(part.done());
  EXPECT_THAT(sentence_of([&] { part.wait(); }), HasSubstr("wait for a launch of the graph"));
  EXPECT_THAT(sentence_of([&] { other.wait(part); }), HasSubstr("wait for a launch of the graph"));
  graph.launch(other).wait();
  before.wait();
}

TEST_F(OnTestedGpu, AFunctionThatThrowsMakesNoGraph) {
  const OnDevice device(Device::cuda);
  EXPECT_EQ(sentence_of([&] { Graph(computation(), [] { throw std::runtime_error("no graph"); }); }), "no graph");
  EXPECT_EQ(Tensor::of<float>({1}).at(0), 1);  // the stream is still usable
}

// The same update many times over, launched as fast as the host can.
TEST_F(OnTestedGpu, LaunchesOfAGraphFollowEachOther) {
  const OnDevice device(Device::cuda);
  const Tensor x = Tensor::of<float>(std::vector<float>(10'000, 1));
  const Tensor y = Tensor::zeros(x.shape(), x.dtype());
  const Graph graph(computation(), [&] {
    kernels::add(x, y, y);
    const Tensor passing(x.shape(), x.dtype());
    kernels::add(y, x, passing);
    kernels::add(passing, x, y);
  });
  for (int launch = 0; launch < 100; ++launch) graph.launch(computation());
  EXPECT_EQ(y.at(9'999), 300);
}

}  // namespace
}  // namespace stretto
