// Buckets of gradients: which there are, in what order they travel, and what is refused.
#include "stretto/overlap/gradient_buckets.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// Gradients of these sizes, one behind the other; the owner keeps their memory.
struct Gradients {
  explicit Gradients(const std::vector<std::int64_t>& sizes, DType dtype = DType::f32)
      : memory(Tensor::zeros({std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})}, dtype)) {
    std::int64_t at = 0;
    for (const std::int64_t size : sizes) {
      all.push_back(memory.view(at, {size}));
      at += size;
    }
  }
  void fill(int rank, int step) const {
    for (std::int64_t i = 0; i < memory.size(); ++i) memory.set(i, value(rank, step, i));
  }
  static double value(int rank, int step, std::int64_t i) { return static_cast<double>((i * 3 + rank * 5 + step) % 13) / 7; }

  Tensor memory;
  std::vector<Tensor> all;
};

// In f32 and buckets of 9000 bytes: 3000 | 10 1 2000 0 500 | 4000 | 7.
const std::vector<std::int64_t> sizes{3000, 10, 1, 2000, 0, 500, 4000, 7};

TEST(GradientBuckets, AreRunsOfAtLeastTheirSize) {
  run_threads(1, [](const Communicator& world) {
    const auto count = [&](const std::vector<std::int64_t>& of, std::size_t bytes) {
      return GradientBuckets(Gradients(of).all, world, Stream::inline_(), {.bucket_bytes = bytes}).bucket_count();
    };
    EXPECT_EQ(count({100, 100, 100, 100}, 4), 4U);
    EXPECT_EQ(count({100, 100, 100, 100}, 400), 4U);
    EXPECT_EQ(count({100, 100, 100, 100}, 401), 2U);
    EXPECT_EQ(count({100, 100, 100}, 401), 2U);  // the last is smaller
    EXPECT_EQ(count({100, 100, 100, 100}, 1 << 20), 1U);
    EXPECT_EQ(count({100, 1, 1, 1000, 1}, 400), 3U);  // 100 | 1 1 1000 | 1
    EXPECT_EQ(count({}, 400), 0U);
  });
}

// In any order, for several steps, also with a gradient of no elements: the sums, and the same bits without overlap.
TEST(GradientBuckets, SumInAnyOrderOfReadiness) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_threads(ranks, [&](const Communicator& world) {
      const Gradients overlapped(sizes);
      const Gradients plain(sizes);
      GradientBuckets with(overlapped.all, world, Stream("dp"), {.bucket_bytes = 9000});
      GradientBuckets without(plain.all, world, Stream::inline_(), {.bucket_bytes = 9000, .overlap = false});
      EXPECT_EQ(with.bucket_count(), 4U);
      std::vector<std::size_t> order(sizes.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      for (int step = 0; step < 5; ++step) {
        overlapped.fill(world.rank(), step);
        plain.fill(world.rank(), step);
        // The same on all ranks: a group's operations are called in one order.
        std::mt19937 generator(static_cast<unsigned>(step));
        if (step > 0) std::shuffle(order.begin(), order.end(), generator);
        for (const std::size_t i : order) {
          with.ready(i);
          without.ready(i);
        }
        with.finish();
        without.finish();
        for (std::int64_t i = 0; i < plain.memory.size(); ++i) {
          double sum = 0;
          for (int rank = 0; rank < ranks; ++rank) sum += Gradients::value(rank, step, i);
          ASSERT_NEAR(overlapped.memory.at(i), sum, 1e-5) << i;
          ASSERT_EQ(overlapped.memory.at(i), plain.memory.at(i)) << i;
        }
      }
    });
  }
}

TEST(GradientBuckets, TravelBeforeTheLastGradientIsReady) {
  run_threads(2, [](const Communicator& world) {
    const Gradients gradients(sizes);
    const Gradients others(sizes);
    const Communicator second = world.split(0, world.rank(), "without overlap");
    GradientBuckets buckets(gradients.all, world, Stream("dp"), {.bucket_bytes = 9000});
    GradientBuckets plain(others.all, second, Stream("dp"), {.bucket_bytes = 9000, .overlap = false});
    const std::uint64_t since = world.ledger().next_sequence();
    const auto arrived = [&] {
      return std::ranges::count_if(world.ledger().records(since), [](const Record& each) { return each.times.done > 0; });
    };
    buckets.ready(0);
    // The first bucket needs no more than this. It arrives although the rest is far from ready; were it not sent, this would
    // wait forever.
    while (arrived() == 0) std::this_thread::yield();
    EXPECT_EQ(world.ledger().records(since).size(), 1U);
    EXPECT_EQ(world.ledger().records(since)[0].count, 3000);
    EXPECT_EQ(world.ledger().records(since)[0].tag, "gradients");
    for (std::size_t i = 1; i < sizes.size(); ++i) buckets.ready(i);
    buckets.finish();
    EXPECT_EQ(world.ledger().records(since).size(), 4U);

    const std::uint64_t then = world.ledger().next_sequence();
    for (std::size_t i = 0; i < sizes.size(); ++i) plain.ready(i);
    EXPECT_EQ(world.ledger().records(then).size(), 0U);
    plain.finish();
    EXPECT_EQ(world.ledger().records(then).size(), 4U);
  });
}

TEST(GradientBuckets, SendNothingInAGroupOfOne) {
  run_threads(1, [](const Communicator& world) {
    const Gradients gradients(sizes);
    GradientBuckets buckets(gradients.all, world, Stream::inline_(), {});
    for (std::size_t i = 0; i < sizes.size(); ++i) buckets.ready(i);
    buckets.finish();
    EXPECT_EQ(world.ledger().records().size(), 0U);
  });
}

template <class Call>
void expect_refusal(Call call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "nobody refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr(words));
  }
}

TEST(GradientBuckets, RefuseWhatWouldSumWrongNumbers) {
  run_threads(2, [](const Communicator& world) {
    const Gradients gradients({10, 20, 30});
    GradientBuckets buckets(gradients.all, world, Stream("dp"), {.bucket_bytes = 100});
    buckets.ready(1);
    expect_refusal([&] { buckets.ready(1); }, "Gradient 1 of 3 is ready twice");
    expect_refusal([&] { buckets.ready(3); }, "does not exist");
    buckets.ready(0);
    expect_refusal([&] { buckets.finish(); }, "Gradient 2 of 3 was not ready");
    buckets.ready(2);  // nothing was harmed
    buckets.finish();

    const Gradients elsewhere({10});
    const auto bucket_of = [&](const std::vector<Tensor>& members) {
      return GradientBuckets(members, world, Stream::inline_(), {});
    };
    expect_refusal([&] { bucket_of({gradients.all[0], elsewhere.all[0]}); }, "Gradient 1 does not lie behind gradient 0");
    expect_refusal([&] { bucket_of({gradients.all[0], gradients.all[2]}); }, "Gradient 1 does not lie behind gradient 0");
    expect_refusal([&] { bucket_of({gradients.all[1], gradients.all[0]}); }, "Gradient 1 does not lie behind gradient 0");
  });
}

}  // namespace
}  // namespace stretto
