// Timeouts that the program sets, and several jobs in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(JobLimits, ATimeoutThatWasSetLater) {
  const std::string said = sentence_of(ErrorCode::timeout, [] {
    run_threads(2, [](const Communicator& world) {
      world.barrier(Stream::inline_()).wait();
      world.job().set_timeout(0.2);
      if (world.rank() == 0) pause(0.6);
      world.barrier(Stream::inline_()).wait();
    });
  });
  EXPECT_THAT(said, HasSubstr("Rank 1 waited 0.2 s for rank 0"));
}

TEST(JobLimits, NoTimeOrLessIsRefused) {
  run_threads(1, [](const Communicator& world) {
    EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { world.job().set_timeout(0); }), HasSubstr("0 s"));
    EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { world.job().set_leave_timeout(-1); }), HasSubstr("-1 s"));
  });
}

// One rank leaves the job; the other stays and must learn of it.
void leave_early(Communicator& world, bool leaves) {
  world.job().set_leave_timeout(0.1);
  world.job().check_ranks();
  world.barrier(Stream::inline_()).wait();
  if (leaves) {
    world = {};
    return;
  }
  const std::string said = sentence_of(ErrorCode::peer_gave_up, [&] { world.barrier(Stream::inline_()).wait(); });
  EXPECT_THAT(said, HasSubstr("it has left the job"));
  EXPECT_EQ(sentence_of(ErrorCode::peer_gave_up, [&] { world.job().check_ranks(); }), said);
}

TEST(JobLimits, WhoStaysLearnsThatAnotherHasLeft) {
  EXPECT_NO_THROW(run_threads(2, [](const Communicator& world) {
    // run_threads keeps its own handle to the end, so the test leaves a second job.
    static MeetingPoint point;
    if (world.rank() == 0) point = open_meeting("127.0.0.1");
    world.barrier(Stream::inline_()).wait();
    Communicator other =
        connect(world.rank(), 2, world.rank() == 0 ? point : MeetingPoint{point.host, point.port, point.secret});
    leave_early(other, world.rank() == 0);
    world.barrier(Stream::inline_()).wait();
  }));
}

TEST(JobLimits, WhoWaitsForARankThatHasReturnedIsTold) {
  for (const bool inside_a_stream : {false, true}) {
    const std::string said = sentence_of(ErrorCode::peer_lost, [&] {
      run_threads(3, [&](const Communicator& world) {
        world.barrier(Stream::inline_()).wait();
        if (world.rank() == 2) return;
        if (!inside_a_stream) return void(world.barrier(Stream::inline_()));
        const Stream stream("all-reduce");
        std::vector<float> values(1000000);
        world.all_reduce(values.data(), values.data(), 1000000, DType::f32, ReduceOp::sum, stream).wait();
      });
    });
    EXPECT_THAT(said, HasSubstr("Rank 2 has left the job"));
  }
}

// The streams of a body that throws wait for ranks that will never come, and those for this rank.
TEST(JobLimits, ABodyThatThrowsTellsTheOthersBeforeItsStreamsAreDone) {
  const auto body = [](const Communicator& world) {
    world.job().set_timeout(30);
    const Communicator other = world.duplicate("other");
    double sum = 1;
    const Stream stream("never done");
    if (world.rank() == 1) {
      std::ignore = other.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, stream);
      throw std::runtime_error("the paper ran out");
    }
    world.barrier(Stream::inline_()).wait();
  };
  EXPECT_EQ(sentence_of([&] { run_threads(2, body); }), "the paper ran out");
}

TEST(JobLimits, SeveralJobsOfOneProcessGoOnAtTheSameTime) {
  run_threads(2, [](const Communicator& world) {
    static MeetingPoint points[3];
    std::vector<Communicator> jobs;
    for (MeetingPoint& point : points) {
      if (world.rank() == 0) point = open_meeting("127.0.0.1");
      world.barrier(Stream::inline_()).wait();
      jobs.push_back(
          connect(world.rank(), 2, world.rank() == 0 ? point : MeetingPoint{point.host, point.port, point.secret}));
    }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int turn = 0; turn < 50; ++turn) {
          double sum = static_cast<double>(i);
          jobs[i].all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
          EXPECT_EQ(sum, 2.0 * static_cast<double>(i));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(JobLimits, WhoDoesNotComeInTimeIsNamed) {
  MeetingPoint point = open_meeting("127.0.0.1");
  point.timeout = 0.2;
  EXPECT_THAT(sentence_of(ErrorCode::timeout, [&] { connect(0, 3, point); }), HasSubstr("ranks 1 and 2 did not come"));
}

}  // namespace
}  // namespace stretto
