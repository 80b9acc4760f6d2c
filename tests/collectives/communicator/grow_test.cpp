// Ranks join those of a job. Ranks are threads, and processes.
#include "stretto/grow.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/transports.hpp"
#include "transport/bootstrap/processes/pinning.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

MeetingPoint without_listener(MeetingPoint point) {
  point.listener = -1;
  return point;
}

MeetingPoint point_of(const MeetingPoint& point, int rank) { return rank == 0 ? point : without_listener(point); }

// Throws unless the sum of the ranks arrives on each of them, on two communicators.
void check_sums(const Communicator& world, int ranks) {
  ensure(world.size() == ranks, "There are {} ranks.", world.size());
  const Communicator again = world.duplicate("again");
  for (const std::int64_t count : {1, 1000, 300000}) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(count), world.rank());
    again.all_reduce(values.data(), values.data(), count, DType::i64, ReduceOp::sum, Stream::inline_()).wait();
    ensure(values.back() == ranks * (ranks - 1) / 2, "The sum is wrong.");
  }
}

// The bits of a training's state.
std::vector<double> some_state() {
  std::vector<double> state(100000);
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = 1.0 / static_cast<double>(i + 3);
  return state;
}

void share_state(const Communicator& world, std::vector<double>& state) {
  world.broadcast(state.data(), state.data(), static_cast<std::int64_t>(state.size()), DType::f64, 0, Stream::inline_())
      .wait();
}

TEST(Grow, ThreadsJoinThreadsAgainAndAgain) {
  const MeetingPoint first = open_meeting("127.0.0.1"), second = open_meeting("127.0.0.1");
  std::thread fourth([&] {
    const Communicator four = connect(3, 4, without_listener(first));
    check_sums(four, 4);
    check_sums(grow(four, 6, without_listener(second)), 6);
  });
  std::vector<std::thread> others;
  for (const int rank : {4, 5}) {
    others.emplace_back([&, rank] { check_sums(connect(rank, 6, without_listener(second)), 6); });
  }
  run_threads(3, [&](const Communicator& world) {
    const Communicator four = grow(world, 4, point_of(first, world.rank()));
    EXPECT_EQ(four.rank(), world.rank());
    check_sums(four, 4);
    check_sums(world, 3);  // which is as usable as before
    check_sums(grow(four, 6, point_of(second, four.rank())), 6);
  });
  fourth.join();
  for (std::thread& each : others) each.join();
}

TEST(Grow, NamesARankThatDoesNotComeAndLeavesTheMembersAsTheyAre) {
  MeetingPoint point = open_meeting("127.0.0.1");
  point.timeout = 3;
  run_threads(2, [&](const Communicator& world) {
    const std::string sentence = sentence_of([&] { grow(world, 3, point_of(point, world.rank())); });
    if (world.rank() == 0) {
      EXPECT_THAT(sentence, HasSubstr("rank 2"));
    }
    EXPECT_NE(sentence, "");
    check_sums(world, 2);
  });
}

TEST(Grow, RefusesWhoDoesNotKnowTheSecret) {
  const MeetingPoint point = open_meeting("127.0.0.1");
  std::thread others([&] {
    MeetingPoint guessed = without_listener(point);
    guessed.secret = "guessed";
    EXPECT_THAT(sentence_of([&] { connect(2, 3, guessed); }), HasSubstr("turned rank 2 away"));
    check_sums(connect(2, 3, without_listener(point)), 3);
  });
  run_threads(2, [&](const Communicator& world) { check_sums(grow(world, 3, point_of(point, world.rank())), 3); });
  others.join();
}

TEST(Grow, RefusesNumbersOnAllRanks) {
  const MeetingPoint point = open_meeting("127.0.0.1");
  run_threads(2, [&](const Communicator& world) {
    const MeetingPoint own = point_of(point, world.rank());
    EXPECT_THAT(sentence_of([&] { grow(world, 2, own); }), HasSubstr("of 2 ranks cannot grow to 2"));
    EXPECT_THAT(sentence_of([&] { grow(world, 3 + world.rank(), without_listener(own)); }), HasSubstr("rank"));
    check_sums(world, 2);
  });
}

HardwareThreads threads_of_this_process() {
  cpu_set_t allowed;
  HardwareThreads threads;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return threads;
  for (int thread = 0; thread < CPU_SETSIZE; ++thread) {
    if (CPU_ISSET(thread, &allowed)) threads.push_back(thread);
  }
  return threads;
}

// Whether this process, or another one, has claimed all of these.
bool are_claimed(const HardwareThreads& threads) {
  std::vector<Core> cores;
  for (const int thread : threads) cores.push_back({0, {thread}});
  return CoreClaims().place(std::move(cores), 1, "core").empty();
}

// A rank joins that the members refuse, when the larger job has already begun to divide the cores.
TEST(Grow, LeavesMembersOnTheirCoresWhenItFails) {
  MeetingPoint point = open_meeting("127.0.0.1");
  point.may_pin = true;
  const pid_t between = fork();
  if (between == 0) {
    if (fork() != 0) _exit(0);  // launch() is to have no child but its ranks
    close(point.listener);
    setenv("STRETTO_TRANSPORT", "ucx", 1);
    sentence_of([&] { connect(2, 3, without_listener(point)); });
    _exit(0);
  }
  waitpid(between, nullptr, 0);
  const std::size_t all = threads_of_this_process().size();
  int bound[2];  // rank 0 writes a byte if it has cores of its own
  ASSERT_EQ(pipe(bound), 0);
  EXPECT_EQ(launch(2,
                   [&](const Communicator& world) {
                     const HardwareThreads before = threads_of_this_process();
                     if (world.rank() != 0) close(point.listener);
                     const std::string sentence = sentence_of([&] { grow(world, 3, point_of(point, world.rank())); });
                     ensure(sentence.find("STRETTO_TRANSPORT") != std::string::npos, "It says: {}", sentence);
                     const HardwareThreads behind = threads_of_this_process();
                     ensure(behind == before, "Rank {} ran on {} and runs on {}.", world.rank(), fmt::join(before, ", "),
                            fmt::join(behind, ", "));
                     check_sums(world, 2);  // behind it, rank 0 has claimed the cores again
                     if (before.size() == all) return;
                     ensure(are_claimed(before), "Nobody has claimed the cores of rank {}.", world.rank());
                     if (world.rank() == 0) ensure(write(bound[1], "b", 1) == 1, "The pipe is closed.");
                   }),
            0);
  close(point.listener);
  close(bound[1]);
  char byte = 0;
  const ssize_t bytes = read(bound[0], &byte, 1);
  close(bound[0]);
  if (bytes == 0) GTEST_SKIP() << "another job has the cores, and the members got none of their own";
}

class GrowProcesses : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, GrowProcesses, testing::ValuesIn(transports_here()));

// Rank 2 of 3 is killed. The others go on as 2, and as 3 when another process has come, which gets the state from them.
TEST_P(GrowProcesses, AnotherProcessTakesThePlaceOfOneThatWasKilled) {
  const MeetingPoint point = open_meeting("127.0.0.1");
  int answer[2];
  ASSERT_EQ(pipe(answer), 0);
  const pid_t between = fork();
  if (between == 0) {
    if (fork() != 0) _exit(0);  // launch() is to have no child but its ranks
    close(point.listener);
    std::string said;
    try {
      const Communicator three = connect(2, 3, without_listener(point));
      std::vector<double> state(some_state().size());
      share_state(three, state);
      ensure(state == some_state(), "The state has other bits.");
      check_sums(three, 3);
      said = "joined";
    } catch (const std::exception& error) {
      said = error.what();
    }
    if (write(answer[1], said.data(), said.size()) < 0) _exit(1);
    _exit(0);
  }
  waitpid(between, nullptr, 0);
  close(answer[1]);
  LaunchOptions options;
  options.survivors_go_on = true;
  EXPECT_EQ(launch(
                3,
                [&](const Communicator& world) {
                  world.barrier(Stream::inline_()).wait();
                  if (world.rank() == 2) raise(SIGKILL);
                  if (world.rank() != 0) close(point.listener);
                  const std::string lost = sentence_of([&] {
                    while (true) world.barrier(Stream::inline_()).wait();
                  });
                  ensure(!lost.empty(), "Nobody was lost.");
                  const Communicator two = world.job().shrink();
                  check_sums(two, 2);
                  const Communicator three = grow(two, 3, point_of(point, two.rank()));
                  std::vector<double> state = some_state();
                  share_state(three, state);
                  check_sums(three, 3);
                },
                options),
            0);
  close(point.listener);
  std::string said(1000, '\0');
  const ssize_t bytes = read(answer[0], said.data(), said.size());
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, bytes)));
  EXPECT_EQ(said, "joined");
  close(answer[0]);
}

}  // namespace
}  // namespace stretto
