// The vocabulary of streams and tensors on a GPU, over a stand-in of threads whose streams sleep at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/kernels/kernel_data.hpp"
#include "device/stream/stream_queue.hpp"
#include "device/tested_gpu.hpp"
#include "stand_in/on_host_gpu.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

class OnAGpu : public OnHostGpu<> {
 protected:
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
  EXPECT_TRUE(happened);  // the task's kernels are done before its captures are destroyed
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

// A watcher of communication does this when a rank is lost: the GPU continues, with wrong data.
TEST_F(OnAGpu, AWorkThatFailsUnderWayFailsWhatIsBehindIt) {
  const Stream stream("communication", Priority::normal, Device::cuda);
  const Stream waiting("waiting", Priority::normal, Device::cuda);
  const Stream behind("behind", Priority::normal, Device::cuda);
  const Stream host("host", Priority::normal, Device::cpu);
  Work before, failed, same, other, third, on_host;
  {
    const Gate gate(gpu, stream);
    before = stream.enqueue([] {});
    failed = stream.enqueue([] {});
    same = stream.enqueue([] {});
    waiting.wait(failed);
    other = waiting.enqueue([] {});
    behind.wait(waiting);
    third = behind.enqueue([] {});
    host.wait(third);
    on_host = host.enqueue([] {});
    failed.state()->fail_with(std::make_exception_ptr(std::runtime_error("a rank is lost")), nullptr);
  }
  EXPECT_EQ(sentence_of([&] { third.wait(); }), "a rank is lost");
  EXPECT_EQ(sentence_of([&] { on_host.wait(); }), "a rank is lost");
  EXPECT_EQ(sentence_of([&] { before.wait(); }), "");
  for (const Work& each : {failed, same, other}) EXPECT_EQ(sentence_of([&] { each.wait(); }), "a rank is lost");
  bool ran = false;
  for (const Stream& each : {stream, waiting, behind}) {
    EXPECT_EQ(sentence_of([&] { each.enqueue([&] { ran = true; }).wait(); }), "a rank is lost");
  }
  EXPECT_FALSE(ran);
}

// Kernels are not tasks: the error of a work for which the stream waited reaches readers of the kernels' results.
TEST_F(OnAGpu, ReadingWhatWasComputedFromAFailedWorkThrows) {
  const OnDevice device(Device::cuda);
  const Stream communication("communication");
  const Tensor tensor = Tensor::of<float>({1, 2});
  Work failed;
  {
    const Gate gate(gpu, communication);
    failed = communication.enqueue([] {});
    computation().wait(failed);
    kernels::add(tensor, tensor, tensor);
    failed.state()->fail_with(std::make_exception_ptr(std::runtime_error("a rank is lost")), nullptr);
  }
  EXPECT_EQ(sentence_of([&] { tensor.at(0); }), "a rank is lost");
}

TEST_F(OnAGpu, AWorkThatFailedBeforeItWasPutInIsNotPutIn) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const Work reserved = Work::reserve();
  reserved.state()->fail_with(std::make_exception_ptr(std::runtime_error("a rank is lost")), nullptr);
  bool ran = false;
  stream.enqueue([&] { ran = true; }, reserved);
  EXPECT_EQ(sentence_of([&] { reserved.wait(); }), "a rank is lost");
  EXPECT_FALSE(ran);
}

// Thousands of works may be in flight, and settling the last one settles all of them.
TEST_F(OnAGpu, ALongStreamEnds) {
  const Stream stream("s", Priority::normal, Device::cuda);
  std::vector<Work> works;
  {
    const Gate gate(gpu, stream);
    for (int i = 0; i < 20000; ++i) works.push_back(stream.enqueue([] {}));
    works.front().state()->fail_with(std::make_exception_ptr(std::runtime_error("a rank is lost")), nullptr);
  }
  EXPECT_EQ(sentence_of([&] { works.back().wait(); }), "a rank is lost");
}

TEST_F(OnAGpu, AWorkHasTheTimesOfTheGpu) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const double before = now_seconds();
  const Work work = stream.enqueue([&] { put([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }); });
  work.wait_started();
  work.wait();
  const WorkTimes times = work.times();
  EXPECT_LE(before, times.enqueued);
  // The clocks agree up to the delay between reaching an event and noticing it on the host.
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

TEST_F(OnAGpu, AFailureOfTheGpuIsThrownWhereItIsWaitedForAndNotWhereItIsAskedFor) {
  const Stream stream("s", Priority::normal, Device::cuda);
  const Work work = stream.enqueue([&] { put([] { throw Error(ErrorCode::internal, "an illegal address"); }); });
  while (!work.done()) std::this_thread::yield();
  EXPECT_THAT(sentence_of([&] { work.wait(); }), HasSubstr("an illegal address"));
}

// ---- graphs

TEST_F(OnAGpu, AGraphCannotWaitForWhatIsOutside) {
  const OnDevice device(Device::cuda);
  const Stream other("other");
  const Gate gate(gpu, other);
  const Work outside = other.enqueue([] {});
  EXPECT_THAT(sentence_of([&] { Graph(computation(), [&] { computation().wait(outside); }); }), HasSubstr("outside of it"));
}

}  // namespace
}  // namespace stretto
