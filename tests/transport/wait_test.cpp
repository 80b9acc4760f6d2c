// A ring wakes a sleeper, and no ring is lost. Each lost ring would cost the longest sleep; thousands of them would exceed
// the test's time limit.
#include "transport/wait.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <thread>
#include <vector>

#include "stretto/stream.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

constexpr WaitPolicy sleep_at_once{0, 0, 0, true};

void wait_for(const std::atomic<int>& value, int wanted, Bell& bell) {
  Waiter waiter(sleep_at_once, bell);
  while (value.load() < wanted) waiter.pause();
}

TEST(Bell, EndsASleep) {
  Bell bell{};
  std::atomic<int> value = 0;
  std::thread sleeper([&] { wait_for(value, 1, bell); });
  while (bell.sleepers.load() == 0) std::this_thread::yield();
  value = 1;
  bell.ring();
  sleeper.join();
  EXPECT_GE(bell.rings.load(), 1U);
  EXPECT_EQ(bell.sleepers.load(), 0U);  // the bell counts no sleeper any more
}

TEST(Bell, IsSilentWhenNobodySleeps) {
  Bell bell{};
  bell.ring();
  EXPECT_EQ(bell.rings.load(), 0U);
}

TEST(Bell, WakesAllSleepers) {
  Bell bell{};
  std::atomic<int> value = 0;
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) sleepers.emplace_back([&] { wait_for(value, 1, bell); });
  while (bell.sleepers.load() < 3) std::this_thread::yield();
  value = 1;
  bell.ring();
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(bell.sleepers.load(), 0U);
}

TEST(Bell, LosesNoRingBetweenTwo) {
  constexpr int rounds = 20000;
  struct Side {
    Bell bell{};
    std::atomic<int> value = 0;
  } ping, pong;
  std::thread other([&] {
    for (int round = 1; round <= rounds; ++round) {
      wait_for(ping.value, round, ping.bell);
      pong.value = round;
      pong.bell.ring();
    }
  });
  for (int round = 1; round <= rounds; ++round) {
    ping.value = round;
    ping.bell.ring();
    wait_for(pong.value, round, pong.bell);
  }
  other.join();
  EXPECT_EQ(pong.value, rounds);
}

TEST(Waiter, IsNoSleeperAfterItFoundSomething) {
  forget_looks();  // of tests before this one
  Bell bell{};
  Waiter waiter(sleep_at_once, bell);
  EXPECT_EQ(waiter.idle_seconds(), 0);
  waiter.pause();
  EXPECT_EQ(bell.sleepers.load(), 1U);
  waiter.idle_seconds();  // starts the count
  waiter.pause();
  EXPECT_GT(waiter.idle_seconds(), 0);
  waiter.moved();
  EXPECT_EQ(bell.sleepers.load(), 0U);
  EXPECT_EQ(waiter.idle_seconds(), 0);
}

// A waiter that does not yield counts as a sleeper at its first pause.
TEST(Waiter, SleepsAtOnceForWhatComesLaterButNotForABound) {
  constexpr WaitPolicy yields_first{0, 0, 3, true};
  constexpr std::int64_t millisecond = 1'000'000;
  Bell bell{};
  {
    Waiter waiter(yields_first, bell);
    for (int pause = 0; pause < 3; ++pause) {
      look_again_by(steady_nanoseconds() + 1000 * millisecond);
      waiter.pause();
      EXPECT_EQ(bell.sleepers.load(), 0U);
    }
    const std::int64_t begin = steady_nanoseconds();
    for (int pause = 0; pause < 5; ++pause) {  // without its bound, each pause would take the longest sleep
      look_again_by(steady_nanoseconds() + 2 * millisecond);
      waiter.pause();
    }
    EXPECT_EQ(bell.sleepers.load(), 1U);
    EXPECT_GE(steady_nanoseconds() - begin, 8 * millisecond) << "the first of five gets ready to sleep";
  }
  Waiter control(yields_first, bell);
  look_again_at(steady_nanoseconds() + 1000 * millisecond);
  control.pause();
  EXPECT_EQ(bell.sleepers.load(), 1U);
}

TEST(Waiter, DoesNotSleepForWhatWasForgotten) {
  constexpr WaitPolicy yields_first{0, 0, 1, true};
  Bell bell{};
  Waiter waiter(yields_first, bell);
  look_again_at(steady_nanoseconds() + 1'000'000'000);
  forget_looks();
  waiter.pause();
  EXPECT_EQ(bell.sleepers.load(), 0U);
}

thread_local int calls_meanwhile = 0;

TEST(Waiter, CallsWhatIsToBeDoneMeanwhileAndNeverSleepsLongWithoutIt) {
  Bell bell{};
  while_waiting({[] { ++calls_meanwhile; }});
  const std::int64_t begin = steady_nanoseconds();
  {
    Waiter waiter(sleep_at_once, bell);
    for (int pause = 0; pause < 12; ++pause) waiter.pause();
  }
  EXPECT_GE(calls_meanwhile, 10);
  EXPECT_LT(steady_nanoseconds() - begin, 10 * 45'000'000) << "unbounded, each sleep would take 50 ms";
  std::thread([&] {
    Waiter of_another_thread(sleep_at_once, bell);
    for (int pause = 0; pause < 3; ++pause) of_another_thread.pause();
    EXPECT_EQ(calls_meanwhile, 0);
  }).join();
  EXPECT_EQ(while_waiting({}).seconds, 1e-3);
  EXPECT_EQ(while_waiting({}).function, nullptr);
  const int before = calls_meanwhile;
  Waiter silent(sleep_at_once, bell);
  for (int pause = 0; pause < 3; ++pause) silent.pause();
  EXPECT_EQ(calls_meanwhile, before);
}

TEST(WaitPolicy, IsTheOneThatTheUserChose) {
  const auto chosen = [](const char* mode, int ranks) {
    const Variable wait("STRETTO_WAIT", mode);
    return WaitPolicy::chosen(ranks);
  };
  EXPECT_EQ(chosen("spin", 1000).spins, INT_MAX);
  EXPECT_EQ(chosen("yield", 1).yields, INT_MAX);
  EXPECT_FALSE(chosen("yield", 1).may_sleep);
  EXPECT_EQ(chosen("sleep", 1).spins + chosen("sleep", 1).yields, 0);
  EXPECT_GT(chosen("auto", 1).spins, 0);
  EXPECT_EQ(chosen("auto", 100000).spins, 0);  // more ranks than cores
  EXPECT_TRUE(chosen("auto", 1).in_background().may_sleep);
  EXPECT_GT(chosen("auto", 1).yields, 0);
  EXPECT_EQ(chosen("auto", 1).in_background().yields, 0);
  EXPECT_FALSE(chosen("spin", 1).in_background().may_sleep);
}

}  // namespace
}  // namespace stretto
