// A rank that calls fork(): the child must neither use nor disturb what belongs to its parent.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

void expect_names_fork(const std::function<void()>& call) {
  const std::string sentence = sentence_of(call);
  require(sentence.find("fork()") != std::string::npos, "A call in a child of fork() said: {}", sentence);
}

// Ends with status 0 if the child's calls were refused, and if what the child inherited can be destroyed.
void calls_after_fork(const Communicator& world) {
  double sum = 1;
  const auto add = [&](const Stream& stream) { return world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, stream); };
  {
    const Stream stream("worker");
    const Operation prepared = world.prepare({Collective::all_reduce, &sum, &sum, 1, DType::f64, ReduceOp::sum});
    add(Stream::inline_()).wait();
    add(stream).wait();
    prepared.start(Stream::inline_()).wait();  // 8
    const Work unfinished = Work::reserve();
    if (world.rank() == 0) {
      const pid_t child = fork();
      if (child == 0) {
        sum = 100;
        expect_names_fork([&] { add(Stream::inline_()).wait(); });
        expect_names_fork([&] { add(stream).wait(); });
        expect_names_fork([&] { prepared.start(Stream::inline_()).wait(); });
        expect_names_fork([&] { const Communicator other = world.duplicate("other"); });
        expect_names_fork([&] { stream.enqueue([] {}).wait(); });
        expect_names_fork([&] { unfinished.wait(); });
        require(world.size() == 2, "The child sees {} ranks.", world.size());
        return;  // as a rank that ends: leaves the job, joins threads
      }
      int status = -1;
      waitpid(child, &status, 0);
      require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "The child ended with wait status {}.", status);
    }
  }
  add(Stream::inline_()).wait();
  require(sum == 16, "The parent's sum is {}, not 16.", sum);
}

TEST(Fork, AChildsCallsAreRefusedAndDisturbNobody) { EXPECT_EQ(launch(2, calls_after_fork), 0); }

// The child's error is the child's alone: its parent and the other rank go on.
TEST(Fork, AChildThatThrowsEndsAlone) {
  EXPECT_EQ(launch(2,
                   [](const Communicator& world) {
                     double sum = 1;
                     if (world.rank() == 0) {
                       const pid_t child = fork();
                       if (child == 0) world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
                       int status = -1;
                       waitpid(child, &status, 0);
                       require(WIFEXITED(status) && WEXITSTATUS(status) == 1, "The child ended with wait status {}.",
                               status);
                     }
                     world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
                     require(sum == 2, "The parent's sum is {}, not 2.", sum);
                   }),
            0);
}

TEST(Fork, AChildOfARankThatIsAThreadEndsAlone) {
  run_threads(2, [](const Communicator& world) {
    double sum = 1;
    for (const bool throws : {false, true}) {
      if (world.rank() == 0) {
        const pid_t child = fork();
        if (child == 0 && throws) world.barrier(Stream::inline_()).wait();
        if (child == 0) return;
        int status = -1;
        waitpid(child, &status, 0);
        EXPECT_TRUE(WIFEXITED(status));
        EXPECT_EQ(WEXITSTATUS(status), throws ? 1 : 0);
      }
      world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
    }
    EXPECT_EQ(sum, 4);
  });
}

// A child may start a job of its own.
TEST(Fork, AChildMayStartAJob) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends a process that starts threads after fork()";
#endif
  EXPECT_EQ(launch(2,
                   [](const Communicator& world) {
                     const pid_t child = fork();
                     if (child == 0) {
                       _exit(launch(2, [](const Communicator& own) {
                         double sum = 1;
                         own.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream("own")).wait();
                         require(sum == 2, "The sum of the child's job is {}, not 2.", sum);
                       }));
                     }
                     int status = -1;
                     waitpid(child, &status, 0);
                     require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "The child ended with wait status {}.", status);
                     world.barrier(Stream::inline_()).wait();
                   }),
            0);
}

}  // namespace
}  // namespace stretto
