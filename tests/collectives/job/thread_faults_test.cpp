// One of several ranks that are threads goes wrong: the others end, and a sentence names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int ranks = 4;

struct ThreadFault {
  const char* name;
  void (*happens)(const Communicator& world, const std::atomic<int>& ended);  // ended: other ranks
};

const std::vector<ThreadFault> faults = {
    {"throws", [](const Communicator&, const std::atomic<int>&) { throw std::runtime_error("the disk burns"); }},
    {"returns", [](const Communicator&, const std::atomic<int>&) {}},
    {"loops",
     [](const Communicator&, const std::atomic<int>& ended) {
       while (ended < ranks - 1) std::this_thread::yield();
     }},
    {"calls something else",
     [](const Communicator& world, const std::atomic<int>&) {
       float values[3] = {};
       world.all_reduce(values, values, 3, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
     }},
};

// Returns the error of run_threads().
std::string error_of_a_job(const ThreadFault& fault, int victim, bool in_a_stream) {
  std::atomic<int> ended = 0;
  const auto body = [&](const Communicator& world) {
    world.job().set_timeout(0.5);
    world.barrier(Stream::inline_()).wait();
    if (world.rank() == victim) return fault.happens(world, ended);
    struct Ends {
      std::atomic<int>& count;
      ~Ends() { ++count; }
    } ends{ended};
    std::vector<double> values(1000);
    const Stream stream = in_a_stream ? Stream("sums") : Stream::inline_();
    while (true) world.all_reduce(values.data(), values.data(), 1000, DType::f64, ReduceOp::sum, stream).wait();
  };
  return sentence_of([&] { run_threads(ranks, body); });
}

TEST(ThreadFaults, EndTheOthersAndAreNamed) {
  for (const ThreadFault& fault : faults) {
    for (const int victim : {0, 1, ranks - 1}) {
      const bool in_a_stream = victim == 1;
      SCOPED_TRACE(testing::Message() << "rank " << victim << " " << fault.name);
      const std::string rank = std::to_string(victim);
      EXPECT_THAT(error_of_a_job(fault, victim, in_a_stream),
                  AnyOf(HasSubstr("the disk burns"), HasSubstr("Rank " + rank), HasSubstr("rank " + rank)));
    }
  }
}

// Its error would be thrown when all threads have ended, which is never.
TEST(ThreadFaults, AThreadThatNeverReturnsIsReported) {
  testing::internal::CaptureStderr();
  sentence_of(ErrorCode::timeout, [] {
    run_threads(3, [](const Communicator& world) {
      world.job().set_timeout(0.2);
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::seconds(4));
        return;
      }
      world.barrier(Stream::inline_()).wait();
    });
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("waited 0.2 s for rank 2"));
  EXPECT_THAT(said, HasSubstr("when the threads of rank 2 return"));
}

}  // namespace
}  // namespace stretto
