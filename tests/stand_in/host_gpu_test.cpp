#include "stand_in/host_gpu.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "stretto/error.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Functions put into the stream after the gate run when it opens.
struct Gate {
  std::shared_ptr<Marker> open = std::make_shared<Marker>();
  Gate(HostGpu& gpu, GpuStream stream) {
    gpu.put(stream, [open = open] { open->wait(); });
  }
  ~Gate() { open->reach(0); }
};

class HostGpuRules : public testing::Test {
 protected:
  HostGpu gpu;
  GpuStream a = gpu.create_stream(Priority::normal);
  GpuStream b = gpu.create_stream(Priority::normal);
  GpuEvent event = gpu.create_event();
  GpuEvent other_event = gpu.create_event();
};

TEST_F(HostGpuRules, AnEventIsReachedWhenItsStreamComesToIt) {
  EXPECT_TRUE(gpu.reached(event));  // an event that was never recorded counts as reached
  {
    const Gate gate(gpu, a);
    gpu.record(event, a);
    EXPECT_FALSE(gpu.reached(event));
  }
  gpu.synchronize(event);
  EXPECT_TRUE(gpu.reached(event));
}

TEST_F(HostGpuRules, AStreamWaitsForTheRecordThatWasTheLatestAtTheCall) {
  std::atomic<int> step = 0;
  std::atomic<int> seen = -1;
  gpu.record(event, a);
  gpu.wait(b, event);  // waits for the record above
  const Gate gate(gpu, a);
  gpu.record(event, a);  // b does not wait for this one
  gpu.put(b, [&] { seen = step.load(); });
  gpu.wait_until_here(b, "test");
  EXPECT_EQ(seen, 0);
}

TEST_F(HostGpuRules, WhatWasWaitedForIsOverAndOneThatIgnoresWaitsIsNot) {
  for (const bool ignores : {false, true}) {
    HostGpu other({.ignores_waits = ignores});
    const GpuStream first = other.create_stream(Priority::normal);
    const GpuStream second = other.create_stream(Priority::normal);
    const GpuEvent written = other.create_event();
    std::atomic<bool> is_written = false;
    std::atomic<bool> seen = false;
    {
      Gate gate(other, first);
      other.put(first, [&] { is_written = true; });
      other.record(written, first);
      other.wait(second, written);
      other.put(second, [&] { seen = is_written.load(); });
      if (ignores) other.wait_until_here(second, "test");
    }
    other.wait_until_here(second, "test");
    EXPECT_EQ(seen, !ignores);
  }
}

TEST_F(HostGpuRules, SecondsLieBetweenTwoRecords) {
  gpu.record(event, a);
  gpu.put(a, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  gpu.record(other_event, a);
  gpu.synchronize(other_event);
  EXPECT_GE(gpu.seconds_between(event, other_event), 0.002);
}

TEST_F(HostGpuRules, MemoryIsPoisonedWhenItIsTakenAndWhenItIsReleased) {
  std::byte* const memory = gpu.allocate(8, a);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0U);
  EXPECT_TRUE(gpu.is_device_memory(memory + 7));
  EXPECT_FALSE(gpu.is_device_memory(memory + 8));
  double value = 0;
  EXPECT_FALSE(gpu.is_device_memory(&value));
  gpu.copy(&value, memory, 8, a);
  EXPECT_TRUE(std::isnan(value));

  value = 3;
  gpu.copy(memory, &value, 8, a);
  {
    const Gate gate(gpu, a);
    gpu.release(memory, a);
    EXPECT_FALSE(gpu.is_device_memory(memory));
    std::memcpy(&value, memory, 8);  // the stream has not reached the release
    EXPECT_EQ(value, 3);
  }
  gpu.wait_until_here(a, "test");
  std::memcpy(&value, memory, 8);
  EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(gpu.bytes_in_use(), 0U);
  EXPECT_THAT(gpu.violations(), IsEmpty());
}

TEST_F(HostGpuRules, ZeroAndCopiesBetweenItsMemoriesHappenInTheirTurn) {
  std::byte* const from = gpu.allocate(8, a);
  std::byte* const to = gpu.allocate(8, a);
  {
    const Gate gate(gpu, a);
    gpu.zero(from, 8, a);
    gpu.copy(to, from, 8, a);  // does not block
  }
  double value = 1;
  gpu.copy(&value, to, 8, a);
  EXPECT_EQ(value, 0);
  gpu.release(from, a);
  gpu.release(to, a);
}

TEST_F(HostGpuRules, AGraphDoesTheSameAtEachLaunch) {
  std::vector<int> order;
  gpu.begin_capture(a);
  EXPECT_TRUE(gpu.is_capturing(a));
  gpu.put(a, [&] { order.push_back(1); });
  gpu.record(event, a);
  gpu.wait(b, event);
  EXPECT_TRUE(gpu.is_capturing(b));
  gpu.put(b, [&] { order.push_back(2); });
  gpu.record(event, b);
  gpu.wait(a, event);
  gpu.put(a, [&] { order.push_back(3); });
  const GpuGraph graph = gpu.end_capture(a);
  EXPECT_FALSE(gpu.is_capturing(a));
  EXPECT_FALSE(gpu.is_capturing(b));
  EXPECT_THAT(order, IsEmpty());
  gpu.launch(graph, b);
  gpu.launch(graph, a);  // runs after the first launch
  gpu.destroy(graph);
  gpu.wait_until_here(a, "test");
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_THAT(gpu.violations(), IsEmpty());
}

TEST_F(HostGpuRules, ACaptureKnowsWhoseWorkNobodyWaitedFor) {
  gpu.begin_capture(a);
  gpu.record(event, a);
  gpu.wait(b, event);
  gpu.put(b, [] {});
  gpu.record(event, b);
  gpu.wait(a, event);
  gpu.put(b, [] {});  // stream a has not waited for this one
  EXPECT_THAT(sentence_of([&] { gpu.end_capture(a); }), HasSubstr("has not waited for 1"));
  EXPECT_FALSE(gpu.is_capturing(b));
}

TEST_F(HostGpuRules, NothingIsAskedOrWaitedForDuringACapture) {
  std::byte* const memory = gpu.allocate(8, a);
  gpu.record(other_event, b);
  gpu.begin_capture(a);
  gpu.record(event, a);
  double value = 0;
  const std::vector<std::function<void()>> forbidden = {
      [&] { gpu.reached(event); },
      [&] { gpu.synchronize(event); },
      [&] { gpu.seconds_between(event, event); },
      [&] { gpu.reached(other_event); },
      [&] { gpu.wait(a, other_event); },  // the event was recorded outside the capture
      [&] { gpu.copy(&value, memory, 8, a); },
      [&] { gpu.copy(memory, &value, 8, b); },
      [&] { gpu.allocate(8, a); },
      [&] { gpu.begin_capture(a); },
      [&] { gpu.end_capture(b); },
  };
  for (std::size_t i = 0; i < forbidden.size(); ++i) {
    EXPECT_NE(sentence_of(forbidden[i]), "") << i;
    EXPECT_EQ(gpu.violations().size(), i + 1);
  }
  std::thread([&] {
    EXPECT_NE(sentence_of([&] { gpu.reached(event); }), "");  // the event was recorded inside the capture
    EXPECT_EQ(sentence_of([&] { gpu.synchronize(other_event); }), "");
    EXPECT_NE(sentence_of([&] { gpu.end_capture(a); }), "");
  }).join();
  gpu.end_capture(a);
  EXPECT_NE(sentence_of([&] { gpu.wait(b, event); }), "");  // the event belongs to a capture that has ended
  gpu.release(memory, a);
}

TEST_F(HostGpuRules, HandlesAreItsOwnAndAlive) {
  HostGpu other;
  EXPECT_THAT(sentence_of([&] { other.record(event, a); }), HasSubstr("another GPU's"));
  gpu.destroy(a);
  EXPECT_THAT(gpu.violations(), IsEmpty());
  gpu.destroy(a);
  EXPECT_THAT(gpu.violations(), ElementsAre(HasSubstr("destroyed")));
  gpu.destroy(event);
  EXPECT_THAT(sentence_of([&] { gpu.synchronize(event); }), HasSubstr("destroyed"));
  std::byte* const memory = gpu.allocate(8, b);
  gpu.release(memory, b);
  gpu.release(memory, b);
  EXPECT_EQ(gpu.violations().size(), 3U);
}

TEST_F(HostGpuRules, WhatIsInADestroyedStreamStillHappens) {
  std::atomic<bool> happened = false;
  {
    const Gate gate(gpu, a);
    gpu.put(a, [&] { happened = true; });
    gpu.record(event, a);
    gpu.destroy(a);
  }
  gpu.synchronize(event);
  EXPECT_TRUE(happened);
}

TEST_F(HostGpuRules, KernelsGetItsMemoryOnly) {
  std::byte* const memory = gpu.allocate(4, a);
  float host = 0;
  EXPECT_NE(sentence_of([&] { gpu.kernels().multiply(DType::f32, &host, memory, 1, 2, a); }), "");
  EXPECT_NE(sentence_of([&] { gpu.kernels().multiply(DType::f32, memory, memory, 2, 2, a); }), "");  // longer than the block
  gpu.kernels().multiply(DType::f32, &host, memory, 0, 2, a);
  gpu.release(memory, a);
}

// A launch on a GPU copies its arguments, too.
TEST_F(HostGpuRules, AKernelCopiesItsArraysAtTheCall) {
  std::byte* const memory = gpu.allocate(8, a);
  const float two[] = {2, 3};
  gpu.copy(memory, two, 8, a);
  {
    const Gate gate(gpu, a);
    const void* sources[] = {memory, memory + 4};
    gpu.kernels().reduce_all(ReduceOp::sum, DType::f32, sources, 2, memory, 1, 1, a);
    sources[0] = sources[1] = nullptr;
  }
  float sum = 0;
  gpu.copy(&sum, memory, 4, a);
  EXPECT_EQ(sum, 5);
  gpu.release(memory, a);
}

TEST_F(HostGpuRules, AFunctionThatThrowsIsTheFailureOfTheGpu) {
  bool ran = false;
  gpu.put(a, [] { throw Error(ErrorCode::internal, "an illegal address"); });
  gpu.put(a, [&] { ran = true; });
  gpu.record(event, a);
  EXPECT_THAT(sentence_of([&] { gpu.synchronize(event); }), HasSubstr("an illegal address"));
  EXPECT_THAT(sentence_of([&] { gpu.reached(event); }), HasSubstr("an illegal address"));
  EXPECT_FALSE(ran);
}

// ---- Memory that other processes open

bool holds_in_another_process(const std::function<bool(HostGpu& gpu)>& body) {
  const pid_t child = fork();
  if (child == 0) {
    HostGpu gpu;
    _exit(body(gpu) ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST(HostGpuSharing, AnotherProcessReadsAndWritesWhatItOpens) {
  HostGpu gpu;
  const GpuSharedMemory shared = gpu.allocate_shared(1000);
  shared.memory[999] = std::byte{7};
  EXPECT_TRUE(gpu.is_device_memory(shared.memory + 999));
  EXPECT_FALSE(gpu.is_device_memory(shared.memory + 1000));
  EXPECT_TRUE(holds_in_another_process([&](HostGpu& other) {
    std::byte* const memory = other.open_shared(shared.handle);
    const bool found = memory[999] == std::byte{7} && other.is_device_memory(memory) && other.memories_open() == 1;
    memory[0] = std::byte{8};
    other.close_shared(memory);
    return found && other.memories_open() == 0 && other.violations().empty();
  }));
  EXPECT_EQ(shared.memory[0], std::byte{8});
  gpu.release_shared(shared.memory);
  EXPECT_THAT(gpu.violations(), IsEmpty());
  EXPECT_EQ(gpu.shared_bytes_in_use(), 0U);
  EXPECT_TRUE(holds_in_another_process([&](HostGpu& other) {  // the handle is stale now
    const std::string sentence = sentence_of([&] { other.open_shared(shared.handle); });
    return sentence.find("has no such memory") != std::string::npos && other.violations().empty();
  }));
}

TEST(HostGpuSharing, NobodyOpensItsOwn) {
  HostGpu gpu;
  const GpuSharedMemory shared = gpu.allocate_shared(1000);
  EXPECT_THAT(sentence_of([&] { gpu.open_shared(shared.handle); }), HasSubstr("a handle of this process"));
  gpu.release_shared(shared.memory);
  EXPECT_THAT(gpu.violations(), ElementsAre(HasSubstr("a handle of this process")));
}

TEST(HostGpuSharing, IsClosedOnceAndBeforeItIsReleased) {
  HostGpu gpu;
  const GpuSharedMemory shared = gpu.allocate_shared(1000);
  gpu.close_shared(shared.memory);
  EXPECT_THAT(gpu.violations(), ElementsAre(HasSubstr("is not open")));
  EXPECT_TRUE(holds_in_another_process([&](HostGpu& other) {
    std::byte* const memory = other.open_shared(shared.handle);
    other.close_shared(memory);
    other.close_shared(memory);
    other.open_shared(shared.handle);  // this one is never closed
    return other.violations().size() == 1;
  }));
  gpu.release_shared(shared.memory);
  EXPECT_THAT(gpu.violations().back(), HasSubstr("others have open"));
  gpu.release_shared(shared.memory);
  EXPECT_THAT(gpu.violations().back(), HasSubstr("or was released"));
}

}  // namespace
}  // namespace stretto
