// By staged, ranks read each other's memory when its owner may already be done with the call, or with the communicator.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "../oracle.hpp"
#include "core/fail.hpp"
#include "stretto/stretto.hpp"
#include "transport/shm/kept_memory.hpp"

namespace stretto {
namespace {

const Stream here = Stream::inline_();
const OperationOptions staged{.method = Algorithm::staged};

// One rank's part in one call, checked. Values differ by rank, call and element.
void call(const Communicator& world, Collective collective, std::int64_t count, int root, std::int64_t number) {
  oracle::Problem problem{collective, world.size(), count};
  problem.root = has_root(collective) ? root : 0;
  problem.salt = number;
  oracle::Buffers buffers(problem, world.rank(), false);
  world.start(buffers.call(), here, staged).wait();
  require(buffers.fault().empty(), "Call {}, {} of {}, on rank {}: {}", number, name(collective), count, world.rank(),
          buffers.fault());
}

// The same calls on all ranks, each of which is sometimes late. Sizes grow and shrink.
void calls_of_late_ranks(const Communicator& world, int calls) {
  std::mt19937 same(7);
  std::mt19937 own(static_cast<unsigned>(world.rank()));
  for (int number = 1; number <= calls; ++number) {
    const auto collective = static_cast<Collective>(same() % static_cast<unsigned>(Collective::barrier));
    const std::int64_t count = same() % 3 == 0 ? 1 + same() % 20000 : 1 + same() % 300;
    const int root = static_cast<int>(same() % 16) == 0 ? 1 : 0;  // mostly the same, who is then far ahead
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 1000));
    call(world, collective, count, root, number);
  }
}

TEST(Staged, LosesNothingOfRanksThatAreLate) {
  for (const int size : {2, 4}) run_threads(size, [](const Communicator& world) { calls_of_late_ranks(world, 400); });
}

TEST(Staged, LosesNothingOfProcessesThatAreLate) {
  EXPECT_EQ(launch(3, [](const Communicator& world) { calls_of_late_ranks(world, 1000); }), 0);
}

// The root's memory would at once become its next tensor.
TEST(Staged, ACommunicatorMayGoWhileOthersStillReadItsMemory) {
  run_threads(3, [](const Communicator& world) {
    constexpr std::int64_t count = 3000;
    for (int i = 0; i < 50; ++i) {
      std::vector<std::int64_t> data(count, world.rank() == 0 ? i : -1);
      {
        const Communicator other = world.duplicate("other");
        if (world.rank() == 1 + i % 2) std::this_thread::sleep_for(std::chrono::microseconds(300));
        std::ignore = other.broadcast(data.data(), data.data(), count, DType::i64, 0, here, staged);
      }
      const auto next = allocate(count * sizeof(std::int64_t));
      std::fill_n(reinterpret_cast<std::int64_t*>(next.get()), count, -7);
      require(std::accumulate(data.begin(), data.end(), std::int64_t{0}) == count * i, "Call {}: rank {} has read {}.", i,
              world.rank(), data.back());
      std::ignore = world.barrier(here);
    }
  });
}

TEST(KeptMemory, GivesAPartOutAgainWhenItsReadersHavePosted) {
  constexpr std::size_t large = std::size_t{1} << 20;
  KeptMemory memory;
  EXPECT_EQ(memory.posts_needed(large), 0U);
  std::byte* const first = memory.next(large);
  memory.keep(3);
  EXPECT_EQ(memory.posts_needed(large), 0U);
  std::byte* const second = memory.next(large);
  EXPECT_NE(first, second);
  memory.keep(5);
  EXPECT_EQ(memory.posts_needed(large), 4U) << "one more than after the operation that used it";
  EXPECT_EQ(memory.next(large / 2), first);
  memory.keep(6);
  EXPECT_EQ(memory.posts_needed(large), 6U);
  memory.next(2 * large);
  EXPECT_EQ(memory.release().size(), 2U);
  EXPECT_EQ(memory.posts_needed(large), 0U) << "of nothing";
}

TEST(KeptMemory, MoreSmallPartsTakeTurnsThanLargeOnes) {
  constexpr std::size_t large = std::size_t{1} << 20, small = large / 8;
  KeptMemory memory;
  std::set<std::byte*> parts;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    EXPECT_EQ(memory.posts_needed(small), 0U) << i;
    EXPECT_TRUE(parts.insert(memory.next(small)).second) << i;
    memory.keep(i);
  }
  EXPECT_EQ(memory.posts_needed(small), 2U) << "after the first of eight";
  EXPECT_TRUE(parts.count(memory.next(small)));
  memory.keep(9);
  // Whatever the sizes, no part is taken twice in a row.
  std::byte* last = nullptr;
  for (const std::size_t bytes : {large, small, small, large, large, small}) {
    std::byte* const part = memory.next(bytes);
    EXPECT_NE(part, last);
    last = part;
    memory.keep(10);
  }
}

}  // namespace
}  // namespace stretto
