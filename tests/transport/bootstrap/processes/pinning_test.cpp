// The placement of ranks on machines of any shape, and their pinning.
#include "transport/bootstrap/processes/pinning.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <set>
#include <thread>

#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/processes/fork_ranks.hpp"

namespace stretto {
namespace {

using Places = std::vector<HardwareThreads>;

// Core i has threads_of[i] hardware threads, numbered consecutively over all cores; the groups have equal numbers of cores.
std::vector<Core> machine(const std::vector<int>& threads_of, int groups = 1) {
  std::vector<Core> cores;
  int next = 0;
  for (std::size_t i = 0; i < threads_of.size(); ++i) {
    Core core;
    core.group = static_cast<int>(i * static_cast<std::size_t>(groups) / threads_of.size());
    core.threads.resize(threads_of[i]);
    std::iota(core.threads.begin(), core.threads.end(), next);
    next += threads_of[i];
    cores.push_back(core);
  }
  return cores;
}

TEST(PlaceRanks, GivesEachItsShare) {
  EXPECT_EQ(place_ranks(machine({1, 1}), 2), (Places{{0}, {1}}));
  EXPECT_EQ(place_ranks(machine({1, 1, 1, 1}), 2), (Places{{0, 1}, {2, 3}}));
  EXPECT_EQ(place_ranks(machine({1, 1, 1, 1, 1}), 2), (Places{{0, 1}, {2, 3}}));
  EXPECT_EQ(place_ranks(machine({1}), 1), (Places{{0}}));
}

TEST(PlaceRanks, NeverDividesACore) {
  EXPECT_EQ(place_ranks(machine({2, 2}), 2), (Places{{0, 1}, {2, 3}}));
  EXPECT_EQ(place_ranks(machine({2, 2, 1, 1}), 2), (Places{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_EQ(place_ranks(machine({2, 2}), 3), Places());
}

TEST(PlaceRanks, SpreadsMoreRanksThanCoresEvenlyOrNotAtAll) {
  EXPECT_EQ(place_ranks(machine({1, 1}), 4), (Places{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(place_ranks(machine({2, 2}), 4), (Places{{0, 1}, {0, 1}, {2, 3}, {2, 3}}));
  std::vector<Core> shared = machine({1, 1});
  shared[1].claimed = true;
  EXPECT_EQ(place_ranks(shared, 2), Places());
  EXPECT_EQ(place_ranks(machine({1, 1}), 3), Places());
  EXPECT_EQ(place_ranks({}, 1), Places());
  EXPECT_EQ(place_ranks(machine({0, 1}), 2), Places());  // core 0 has no usable thread
}

TEST(PlaceRanks, StaysWithinASocketWhereItCan) {
  const std::vector<Core> two_of_four = machine({1, 1, 1, 1, 1, 1, 1, 1}, 2);
  EXPECT_EQ(place_ranks(two_of_four, 2), (Places{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(place_ranks(two_of_four, 3), (Places{{0, 1}, {2, 3}, {4, 5}}));
  const std::vector<Core> two_of_three = machine({1, 1, 1, 1, 1, 1}, 2);
  EXPECT_EQ(place_ranks(two_of_three, 2), (Places{{0, 1, 2}, {3, 4, 5}}));
  std::vector<Core> uneven = machine({1, 1, 1, 1, 1}, 2);  // groups of 3 and 2 cores
  EXPECT_EQ(place_ranks(uneven, 2), (Places{{0, 1}, {3, 4}}));
  uneven.push_back({1, {5}});
  // One rank spans two groups, because it would get fewer cores otherwise.
  EXPECT_EQ(place_ranks(uneven, 3), (Places{{0, 1}, {2, 3}, {4, 5}}));
}

TEST(PlaceRanks, KeepsOffClaimedCores) {
  std::vector<Core> cores = machine({1, 1, 1, 1});
  cores[0].claimed = cores[2].claimed = true;
  EXPECT_EQ(place_ranks(cores, 1), (Places{{1, 3}}));
  EXPECT_EQ(place_ranks(cores, 2), (Places{{1}, {3}}));
  EXPECT_EQ(place_ranks(cores, 3), Places());
}

// On machines of all shapes, each rank gets the same number of cores, and no core is used twice.
TEST(PlaceRanks, IsFairOnAnyMachine) {
  for (int cores = 1; cores <= 24; ++cores) {
    for (int groups = 1; groups <= std::min(cores, 4); ++groups) {
      for (int ranks = 1; ranks <= cores; ++ranks) {
        const Places placed = place_ranks(machine(std::vector<int>(cores, 2), groups), ranks);
        ASSERT_EQ(placed.size(), ranks);
        std::set<int> seen;
        for (const HardwareThreads& threads : placed) {
          EXPECT_EQ(threads.size(), cores / ranks * 2);
          for (const int thread : threads) EXPECT_TRUE(seen.insert(thread).second) << thread;
        }
      }
    }
  }
}

TEST(CoreClaims, KeepJobsApartAndEndWithTheirHolder) {
  const std::string kind = fmt::format("test{}", getpid());
  const std::vector<Core> cores = machine({1, 1, 1, 1});
  CoreClaims third;
  {
    CoreClaims first;
    EXPECT_EQ(first.place(cores, 3, kind), (Places{{0}, {1}, {2}}));
    CoreClaims second;
    EXPECT_EQ(second.place(cores, 2, kind), Places());  // one core is left
    EXPECT_EQ(third.place(cores, 1, kind), (Places{{3}}));
  }
  CoreClaims fourth;
  EXPECT_EQ(fourth.place(cores, 3, kind), (Places{{0}, {1}, {2}}));
}

int threads_allowed() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

TEST(RunOn, BindsEveryThread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  EXPECT_EQ(fork_ranks(1,
                       [&](int) {
                         std::atomic<bool> bound = false;
                         int other = 0;
                         std::thread thread([&] {
                           while (!bound) std::this_thread::yield();
                           other = threads_allowed();
                         });
                         run_on({first});
                         bound = true;
                         thread.join();
                         return threads_allowed() == 1 && other == 1 ? 0 : 1;
                       }),
            0);
}

TEST(LeaveSharedCore, LetsRanksOfOneCoreRunOnAll) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  HardwareThreads allowed;
  for (int thread = 0; thread < CPU_SETSIZE; ++thread) {
    if (CPU_ISSET(thread, &before)) allowed.push_back(thread);
  }
  if (allowed.size() < 2) GTEST_SKIP() << "takes two hardware threads";
  const auto threads_after = [&](const std::vector<HardwareThreads>& places) {
    return fork_ranks(1, [&](int) {
      take_place(places, 0);
      if (threads_allowed() != 1 || on_shared_core() != (places[0] == places[1])) return 100;
      leave_shared_core();
      return on_shared_core() ? 101 : threads_allowed();
    });
  };
  const HardwareThreads one = {allowed[0]}, other = {allowed[1]};
  EXPECT_EQ(threads_after({one, one, other, other}), 2);
  EXPECT_EQ(threads_after({one, other}), 1);
}

// Checks the number of hardware threads that two ranks share, and the number that either may use.
using IsRight = std::function<bool(int common, int together)>;
void check_two_ranks(const Communicator& world, const IsRight& right) {
  cpu_set_t sets[2], common, together;
  sched_getaffinity(0, sizeof sets[0], &common);
  world.all_gather(&common, sets, sizeof sets[0], DType::u8, Stream::inline_()).wait();
  CPU_AND(&common, &sets[0], &sets[1]);
  CPU_OR(&together, &sets[0], &sets[1]);
  ensure(right(CPU_COUNT(&common), CPU_COUNT(&together)), "{} in common, {} together", CPU_COUNT(&common),
         CPU_COUNT(&together));
}
void expect_of_two_ranks(const IsRight& right) {
  EXPECT_EQ(launch(2, [&](const Communicator& world) { check_two_ranks(world, right); }), 0);
}

// Another job on this machine may hold the cores; then the ranks are not pinned.
TEST(Launch, GivesRanksCoresOfTheirOwnOrLeavesThemAlone) {
  const int all = threads_allowed();
  expect_of_two_ranks([&](int common, int) { return common == 0 || common == all; });
}

TEST(Launch, LeavesRanksAloneWhenTold) {
  const Variable off("STRETTO_PIN", "off");
  const int all = threads_allowed();
  expect_of_two_ranks([&](int common, int together) { return common == all && together == all; });
}

TEST(Launch, LeavesWhatIsPinnedAlone) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int thread = 0; CPU_COUNT(&one) == 0; ++thread) {
    if (CPU_ISSET(thread, &before)) CPU_SET(thread, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
  expect_of_two_ranks([](int common, int together) { return common == 1 && together == 1; });
  sched_setaffinity(0, sizeof before, &before);
}

TEST(Shrink, DividesTheCoresAnew) {
  const int all = threads_allowed();
  if (all < 2) GTEST_SKIP() << "takes two hardware threads";
  EXPECT_EQ(launch(4,
                   [&](const Communicator& world) {
                     if (world.rank() >= 2) {
                       EXPECT_THROW(world.job().shrink(), Error);
                       return;
                     }
                     const auto right = [&](int common, int together) {
                       return common == all || (common == 0 && together > all / 2);  // unpinned beside another job
                     };
                     check_two_ranks(world.job().shrink({2, 3}), right);
                   }),
            0);
}

TEST(Launch, LeavesThreadsAlone) {
  const int all = threads_allowed();
  run_threads(2, [&](const Communicator&) { ensure(threads_allowed() == all, "A thread was bound."); });
}

}  // namespace
}  // namespace stretto
