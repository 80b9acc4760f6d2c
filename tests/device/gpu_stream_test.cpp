// The vocabulary of streams and tensors on a GPU, over a stand-in of threads whose streams sleep at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "device/kernel_data.hpp"
#include "stand_in/host_gpu.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <class Call>
std::string sentence_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class OnAGpu : public testing::Test {
 protected:
  HostGpu gpu{{.longest_delay_us = 300}};
  GpuInUse in_use{gpu};

  void TearDown() override {
    EXPECT_THAT(gpu.violations(), IsEmpty());
    EXPECT_EQ(gpu.bytes_in_use(), 0U);
    EXPECT_EQ(gpu.streams_in_use(), 0U);
    EXPECT_EQ(gpu.events_in_use(), 0U);
  }
  // Into the current stream.
  void put(std::function<void()> function) { gpu.put(gpu_stream(), std::move(function)); }
};

// Holds up a stream of a GPU until it is opened.
struct Gate {
  std::shared_ptr<Marker> open = std::make_shared<Marker>();
  Gate(HostGpu& gpu, const Stream& stream) {
    gpu.put(handle_of(stream), [open = open] { open->wait(); });
  }
  ~Gate() { open->reach(0); }
};

TEST_F(OnAGpu, ATaskPutsItsWorkIntoTheStreamAndIsDoneWhenTheGpuIs) {
  const Stream stream("s", Priority::normal, Device::cuda);
  EXPECT_EQ(stream.device(), Device::cuda);
  std::atomic<int> value = 0;
  Work work;
  {
    const Gate gate(gpu, stream);
    work = stream.enqueue([&] {
      EXPECT_EQ(computation(), stream);
      put([&] { value = 1; });
    });
    EXPECT_FALSE(work.done());
    EXPECT_EQ(value, 0);
  }
  work.wait();
  EXPECT_TRUE(work.done());
  EXPECT_EQ(value, 1);
  EXPECT_EQ(computation(), Stream::inline_());
}

TEST_F(OnAGpu, StreamsWaitForEachOtherOnly) {
  const Stream first("first", Priority::normal, Device::cuda);
  const Stream second("second", Priority::normal, Device::cuda);
  for (int round = 0; round < 50; ++round) {
    int value = 0;
    int seen = -1;
    const Work written = first.enqueue([&] { put([&] { value = round; }); });
    if (round % 3 == 0) second.wait(written);
    if (round % 3 == 1) second.wait(first);
    if (round % 3 == 2) {
      Event event;
      first.record(event);
      second.wait(event);
    }
    second.enqueue([&] { put([&] { seen = value; }); });
    second.synchronize();
    EXPECT_EQ(seen, round);
  }
}

TEST_F(OnAGpu, StreamsOfHostAndGpuWaitForEachOther) {
  const Stream host("host", Priority::normal, Device::cpu);
  const Stream device("device", Priority::normal, Device::cuda);
  for (int round = 0; round < 20; ++round) {
    int value = 0;
    int copied = 0;
    int seen = 0;
    device.enqueue([&] { put([&] { value = round; }); });
    host.wait(device);
    host.enqueue([&] {
      EXPECT_EQ(computation(), Stream::inline_());
      copied = value;
    });
    device.wait(host);  // blocks
    device.enqueue([&] { put([&] { seen = copied; }); });
    Stream::inline_().wait(device);
    EXPECT_EQ(seen, round);
  }
}

TEST_F(OnAGpu, AStreamOfTheProgramsMayBeBusyAndMayEndFirst) {
  const GpuStream own = gpu.create_stream(Priority::normal);
  std::atomic<bool> may_go_on = false;
  std::atomic<int> value = 0;
  gpu.put(own, [&] {
    while (!may_go_on) std::this_thread::yield();
  });
  const Stream stream = Stream::of_cuda(own, "the program's");
  const Work work = stream.enqueue([&] { put([&] { value = 1; }); });
  EXPECT_FALSE(work.done());
  may_go_on = true;
  work.wait();
  EXPECT_EQ(value, 1);
  EXPECT_GE(work.times().done, work.times().started);
  gpu.destroy(own);
}

TEST_F(OnAGpu, AStreamOfTheProgramsIsUsedWithItAndLeftToIt) {
  const GpuStream own = gpu.create_stream(Priority::normal);
  int value = 0;
  {
    const Stream stream = Stream::of_cuda(own, "the program's");
    EXPECT_EQ(stream.device(), Device::cuda);
    EXPECT_EQ(handle_of(stream), own);
    gpu.put(own, [&] { value = 1; });
    const Work work = stream.enqueue([&] { put([&] { value *= 10; }); });
    gpu.put(own, [&] { value += 5; });
    work.wait();
    stream.synchronize();
    EXPECT_EQ(value, 15);
    const Graph graph(stream, [&] {
      put([&] { value += 1; });
      EXPECT_THAT(sentence_of([&] { Stream::of_cuda(own, "again"); }), HasSubstr("while a graph is recorded"));
    });
    graph.launch(stream).wait();
    EXPECT_EQ(value, 16);
  }
  std::atomic<bool> still_there = false;
  gpu.put(own, [&] { still_there = true; });
  while (!still_there) std::this_thread::yield();
  gpu.destroy(own);
}

TEST_F(OnAGpu, AnEventIsOfItsLatestRecord) {
  const Stream stream("s", Priority::normal, Device::cuda);
  Event event;
  stream.wait(event);  // never recorded
  EXPECT_TRUE(event.reached());
  stream.record(event);
  event.wait();
  {
    const Gate gate(gpu, stream);
    EXPECT_TRUE(event.reached());
    stream.record(event);
    EXPECT_FALSE(event.reached());
  }
  event.wait();
  EXPECT_TRUE(event.reached());
}

TEST_F(OnAGpu, ATaskThatThrowsEndsItsStream) {
  const Stream stream("failing", Priority::normal, Device::cuda);
  const Stream waiting("waiting", Priority::normal, Device::cuda);
  const Stream host("host", Priority::normal, Device::cpu);
  std::atomic<bool> happened = false;
  bool ran = false;
  const Work failed = stream.enqueue([&] {
    put([&] { happened = true; });
    throw std::runtime_error("no luck");
  });
  EXPECT_TRUE(happened);  // what it had put there is over before what it held goes
  const Work later = stream.enqueue([&] { ran = true; });
  EXPECT_EQ(sentence_of([&] { failed.wait(); }), "no luck");
  EXPECT_EQ(sentence_of([&] { later.wait(); }), "no luck");
  EXPECT_EQ(sentence_of([&] { stream.synchronize(); }), "no luck");
  waiting.wait(failed);
  host.wait(failed);
  EXPECT_EQ(sentence_of([&] { waiting.enqueue([&] { ran = true; }).wait(); }), "no luck");
  EXPECT_EQ(sentence_of([&] { host.enqueue([&] { ran = true; }).wait(); }), "no luck");
  EXPECT_FALSE(ran);
}

TEST_F(OnAGpu, AReservedWorkIsRefusedUntilItHasATask) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const Work reserved = Work::reserve();
  EXPECT_THAT(sentence_of([&] { stream.wait(reserved); }), HasSubstr("before it was put into a stream"));
  stream.enqueue([] {}, reserved);
  stream.wait(reserved);
  reserved.wait();
}

TEST_F(OnAGpu, AWorkHasTheTimesOfTheGpu) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const double before = now_seconds();
  const Work work = stream.enqueue([&] { put([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }); });
  work.wait_started();
  work.wait();
  const WorkTimes times = work.times();
  EXPECT_LE(before, times.enqueued);
  // The clocks are matched to within what lies between reaching an event and hearing of it.
  EXPECT_GE(times.done - times.started, 0.002);
  EXPECT_GT(times.waited, 0);
}

TEST_F(OnAGpu, WhatATaskHoldsLivesUntilTheGpuHasComePastIt) {
  const Stream stream("s", Priority::normal, Device::cuda);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  Work work;
  {
    const Gate gate(gpu, stream);
    work = stream.enqueue([held = std::move(held)] {});
    stream.enqueue([] {});
    EXPECT_FALSE(seen.expired());
  }
  work.wait();
  EXPECT_TRUE(seen.expired());
}

TEST_F(OnAGpu, TheLastHandleWaitsForTheTasks) {
  std::atomic<bool> happened = false;
  {
    const Stream stream("s", Priority::normal, Device::cuda);
    stream.enqueue([&] { put([&] { happened = true; }); });
  }
  EXPECT_TRUE(happened);
}

// A tensor keeps the GPU's stream, but not the queue of tasks, one of which may hold the tensor.
TEST_F(OnAGpu, ATaskMayHoldTensorsOfItsOwnStream) {
  const OnDevice device(Device::cuda);
  const Tensor tensor = Tensor::zeros({4}, DType::f32);
  computation().enqueue([tensor] {});
}

TEST_F(OnAGpu, OnDeviceIsOfItsThreadAndNests) {
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
    {  // behind the outer one's kernels, and these before its next
      const OnDevice inner(Device::cuda);
      EXPECT_NE(computation(), of_outer);
      kernels::add(sum, sum, sum);
    }
    kernels::add(sum, sum, sum);
    EXPECT_EQ(sum.at(1), 8);
  }
  EXPECT_EQ(current_device(), Device::cpu);
}

TEST_F(OnAGpu, LeavingTheDeviceWaitsForKernels) {
  std::atomic<bool> happened = false;
  {
    const OnDevice device(Device::cuda);
    put([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      happened = true;
    });
  }
  EXPECT_TRUE(happened);
}

TEST_F(OnAGpu, TensorsGoToAndFro) {
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
  EXPECT_THAT(sentence_of([&] { there.at(3); }), HasSubstr("does not fit"));
}

TEST_F(OnAGpu, TensorsCountAsMemory) {
  const std::size_t before = memory_use().bytes;
  {
    const OnDevice device(Device::cuda);
    const Tensor tensor({1000}, DType::f32);
    EXPECT_EQ(memory_use().bytes, before + 4000);
    EXPECT_GE(memory_use().peak_bytes, before + 4000);
  }
  EXPECT_EQ(memory_use().bytes, before);
}

TEST_F(OnAGpu, MixedMemoriesAndMissingDevicesAreRefused) {
  const Tensor here = Tensor::zeros({2}, DType::f32);
  EXPECT_THAT(sentence_of([&] { const Tensor there({2}, DType::f32, Device::cuda); }), HasSubstr("computes on the host"));
  EXPECT_THAT(sentence_of([&] { handle_of(Stream::inline_()); }), HasSubstr("belongs to the host"));
  const OnDevice device(Device::cuda);
  const Tensor there = Tensor::zeros({2}, DType::f32);
  EXPECT_THAT(sentence_of([&] { kernels::add(here, there, there); }), HasSubstr("put all of them into one"));
  const OnDevice host(Device::cpu);
  EXPECT_THAT(sentence_of([&] { kernels::add(there, there, there); }), HasSubstr("computes on the host"));
}

TEST_F(OnAGpu, AFailureOfTheGpuIsThrownWhereItIsWaitedForAndNotWhereItIsAskedFor) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const Work work = stream.enqueue([&] { put([] { throw Error(ErrorCode::internal, "an illegal address"); }); });
  while (!work.done()) std::this_thread::yield();
  EXPECT_THAT(sentence_of([&] { work.wait(); }), HasSubstr("an illegal address"));
}

// ---- graphs

TEST_F(OnAGpu, AGraphComputesTheSameAtEachLaunch) {
  const OnDevice device(Device::cuda);
  const Stream other("other");
  const Tensor sum = Tensor::of<float>({1, 2});
  const Tensor one = Tensor::of<float>({1, 1});
  Tensor doubled;
  const Graph graph(computation(), [&] {
    kernels::add(sum, one, sum);
    other.wait(computation());
    other.enqueue([&] {
      doubled = Tensor({2}, DType::f32);  // is the graph's
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

TEST_F(OnAGpu, AGraphKeepsWhatItUsed) {
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
  const Tensor others = Tensor::zeros({2}, DType::f32);  // would get the memory
  graph.launch(computation());
  graph.launch(computation());
  EXPECT_THAT(values(sum), ElementsAre(8, 12));
}

TEST_F(OnAGpu, WhatBecamePartOfAGraphCannotBeWaitedFor) {
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

TEST_F(OnAGpu, AFunctionThatThrowsMakesNoGraph) {
  const OnDevice device(Device::cuda);
  EXPECT_EQ(sentence_of([&] { Graph(computation(), [] { throw std::runtime_error("no graph"); }); }), "no graph");
  EXPECT_EQ(Tensor::of<float>({1}).at(0), 1);  // the stream goes on
}

TEST_F(OnAGpu, AGraphCannotWaitForWhatIsOutside) {
  const OnDevice device(Device::cuda);
  const Stream other("other");
  const Gate gate(gpu, other);
  const Work outside = other.enqueue([] {});
  EXPECT_THAT(sentence_of([&] { Graph(computation(), [&] { computation().wait(outside); }); }), HasSubstr("outside of it"));
}

}  // namespace
}  // namespace stretto
