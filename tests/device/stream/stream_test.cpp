#include "stretto/stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "stretto/error.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using namespace std::chrono_literals;

TEST(Stream, RunsItsTasksInOrder) {
  std::vector<int> order;
  {
    const Stream stream("order");
    for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i] { order.push_back(i); });
    stream.synchronize();
    ASSERT_EQ(order.size(), 1000U);
  }
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(Stream, TwoStreamsRunSideBySide) {
  const Stream a("a");
  const Stream b("b");
  std::atomic<bool> b_ran = false;
  const Work waits_for_b = a.enqueue([&] {
    while (!b_ran) std::this_thread::yield();
  });
  b.enqueue([&] { b_ran = true; });
  waits_for_b.wait();
}

TEST(Stream, AnEventOrdersWorkAcrossStreams) {
  const Stream producer("producer");
  const Stream consumer("consumer");
  for (int round = 0; round < 100; ++round) {
    int value = 0;
    int seen = -1;
    Event written;
    producer.enqueue([&] {
      if (round % 10 == 0) std::this_thread::sleep_for(1ms);
      value = round;
    });
    producer.record(written);
    consumer.wait(written);
    consumer.enqueue([&] { seen = value; });
    consumer.synchronize();
    EXPECT_EQ(seen, round);
  }
}

// As in CUDA, waiting for an event that was never recorded returns at once, and the latest record counts.
TEST(Event, WaitsForItsLatestRecordOnly) {
  const Stream stream("s");
  Event event;
  EXPECT_TRUE(event.reached());
  stream.wait(event);
  stream.synchronize();

  std::atomic<bool> go = false;
  stream.record(event);
  event.wait();
  stream.enqueue([&] {
    while (!go) std::this_thread::yield();
  });
  EXPECT_TRUE(event.reached());
  stream.record(event);
  EXPECT_FALSE(event.reached());
  go = true;
  event.wait();
}

TEST(Work, HasAStartedAndADoneEdge) {
  const Stream stream("s");
  std::atomic<bool> go = false;
  const Work work = stream.enqueue([&] {
    while (!go) std::this_thread::yield();
  });
  work.wait_started();
  EXPECT_FALSE(work.done());
  go = true;
  work.wait();
  EXPECT_TRUE(work.done());
  const WorkTimes times = work.times();
  EXPECT_LE(times.enqueued, times.started);
  EXPECT_LE(times.started, times.done);
  EXPECT_GE(times.waited, 0);
}

// A work that is not enqueued may never run: waiting for it throws, and affects neither the work nor the stream.
TEST(Work, ReservedIsWaitedForOnlyBehindItsTask) {
  const Stream stream("s");
  const Stream other("other");
  const Work work = Work::reserve();
  EXPECT_THROW(work.wait(), Error);
  EXPECT_THROW(work.wait_started(), Error);
  EXPECT_THROW(other.wait(work), Error);
  EXPECT_THROW(Stream::inline_().wait(work), Error);
  EXPECT_FALSE(work.done());
  bool ran = false;
  stream.enqueue([&] { ran = true; }, work);
  work.wait_started();
  other.wait(work);
  other.synchronize();
  EXPECT_TRUE(ran);
  other.wait(Work());  // done
  other.synchronize();
}

TEST(Work, OwnsItsBuffersUntilDone) {
  const Stream stream("s");
  std::atomic<bool> go = false;
  auto buffer = std::make_shared<int>(7);
  const std::weak_ptr<int> watch = buffer;
  const Work work = stream.enqueue([&go, buffer = std::move(buffer)] {
    while (!go) std::this_thread::yield();
  });
  EXPECT_FALSE(watch.expired());
  go = true;
  work.wait();
  EXPECT_TRUE(watch.expired());
}

TEST(Stream, AnExceptionReachesEveryWaiterAndStopsWhatFollows) {
  const Stream stream("s");
  const Stream other("other");
  bool ran = false;
  const Work failing = stream.enqueue([] { throw std::runtime_error("broken"); });
  const Work behind = stream.enqueue([&] { ran = true; });
  other.wait(behind);
  const Work across = other.enqueue([&] { ran = true; });
  for (const Work& work : {failing, failing, behind, across}) {
    EXPECT_EQ(sentence_of([&] { work.wait(); }), "broken");
  }
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(Stream, DestructionWhileBusyFinishesTheWork) {
  std::atomic<int> done = 0;
  Work last;
  {
    const Stream stream("s");
    for (int i = 0; i < 20; ++i) {
      last = stream.enqueue([&] {
        std::this_thread::sleep_for(200us);
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 20);
  EXPECT_TRUE(last.done());
}

TEST(Stream, ATaskMayHoldTheLastHandleOfItsStream) {
  std::atomic<bool> ran = false;
  Work work;
  {
    auto stream = std::make_shared<Stream>("s");
    work = stream->enqueue([stream, &ran] { ran = true; });
  }
  work.wait();
  EXPECT_TRUE(ran);
}

TEST(InlineStream, RunsInTheCallerAndThrowsFromTheCall) {
  const Stream stream = Stream::inline_();
  std::thread::id where;
  const Work work = stream.enqueue([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_TRUE(work.done());
  EXPECT_THROW(stream.enqueue([] { throw std::runtime_error("broken"); }), std::runtime_error);
  EXPECT_NO_THROW(stream.enqueue([] {}));  // an inline stream has no later work to protect
}

}  // namespace
}  // namespace stretto
