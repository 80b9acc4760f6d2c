// By staged, ranks read each other's memory when its owner may already be done with the call, or with the communicator.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "core/fail.hpp"
#include "stretto/stretto.hpp"
#include "transport/shm/kept_memory.hpp"

namespace stretto {
namespace {

const Stream here = Stream::inline_();
const OperationOptions staged{.method = Algorithm::staged};

using Values = std::vector<std::int64_t>;

// One rank's part in one call, checked. Values differ by rank, call and element.
void call(const Communicator& world, Collective collective, std::int64_t count, int root, std::int64_t number) {
  const int size = world.size();
  const auto value = [&](int rank, std::int64_t i) { return number * 1000 + rank * 100 + i % 100; };
  Values input(count * size);
  for (std::int64_t i = 0; i < count * size; ++i) input[i] = value(world.rank(), i);
  Values output(count * size, -1);
  Work work;
  const bool is_root = world.rank() == root;
  Values expected(count * size, -1);
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      for (std::int64_t i = 0; i < count; ++i) {
        if (collective == Collective::reduce && !is_root) continue;
        expected[i] = 0;
        for (int rank = 0; rank < size; ++rank) expected[i] += value(rank, i);
      }
      break;
    case Collective::reduce_scatter:
      for (std::int64_t i = 0; i < count; ++i) {
        expected[i] = 0;
        for (int rank = 0; rank < size; ++rank) expected[i] += value(rank, world.rank() * count + i);
      }
      break;
    case Collective::all_gather:
    case Collective::gather:
      for (std::int64_t i = 0; i < count * size; ++i) {
        if (collective == Collective::all_gather || is_root) expected[i] = value(static_cast<int>(i / count), i % count);
      }
      break;
    case Collective::all_to_all:
      for (std::int64_t i = 0; i < count * size; ++i) {
        expected[i] = value(static_cast<int>(i / count), world.rank() * count + i % count);
      }
      break;
    case Collective::broadcast:
      for (std::int64_t i = 0; i < count; ++i) expected[i] = value(root, i);
      break;
    default:  // scatter
      for (std::int64_t i = 0; i < count; ++i) expected[i] = value(root, world.rank() * count + i);
  }
  Call what{collective, input.data(), output.data(), count, DType::i64};
  what.root = has_root(collective) ? root : 0;
  world.start(what, here, staged).wait();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    require(expected[i] == -1 || output[i] == expected[i], "Call {}, {} of {}: element {} of rank {} is {}, not {}.", number,
            name(collective), count, i, world.rank(), output[i], expected[i]);
  }
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
  KeptMemory memory;
  EXPECT_EQ(memory.posts_needed(), 0U);
  std::byte* const first = memory.next(100);
  memory.keep(3);
  EXPECT_EQ(memory.posts_needed(), 0U);
  std::byte* const second = memory.next(100);
  EXPECT_NE(first, second);
  memory.keep(5);
  EXPECT_EQ(memory.posts_needed(), 4U) << "one more than after the operation that used it";
  EXPECT_EQ(memory.next(50), first);
  memory.keep(6);
  EXPECT_EQ(memory.posts_needed(), 6U);
  memory.next(5000);
  EXPECT_EQ(memory.release().size(), 2U);
  EXPECT_EQ(memory.posts_needed(), 0U) << "of nothing";
}

}  // namespace
}  // namespace stretto
