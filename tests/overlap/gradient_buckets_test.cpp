// Buckets of gradients: their contents, the order in which they travel, and refusals.
#include "stretto/overlap/gradient_buckets.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "overlap/refusal.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// Gradients of these sizes, one behind the other in `memory`.
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

// In f32 and buckets of 9000 bytes: 3000 | 10 1 2000 0 500 | 4000 | 7; the last bucket is small.
const std::vector<std::int64_t> sizes{3000, 10, 1, 2000, 0, 500, 4000, 7};

// A different order of readiness for each rank and step.
std::vector<std::size_t> some_order(int rank, int step) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 generator(static_cast<unsigned>(rank * 100 + step));
  if (rank + step > 0) std::shuffle(order.begin(), order.end(), generator);
  return order;
}

// The sums are right in any order of readiness, with a different order on each rank and an empty gradient; overlap changes
// no bit.
TEST(GradientBuckets, SumInAnyOrderOfReadiness) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool scatter : {false, true}) {
      run_threads(ranks, [&](const Communicator& world) {
        const Communicator second = world.duplicate("without overlap");
        const Gradients overlapped(sizes);
        const Gradients plain(sizes);
        GradientBuckets with(overlapped.all, world, Stream("dp"), {.bucket_bytes = 9000, .scatter = scatter});
        GradientBuckets without(plain.all, second, Stream::inline_(),
                                {.bucket_bytes = 9000, .overlap = false, .scatter = scatter});
        EXPECT_EQ(with.bucket_count(), 4U);
        for (int step = 0; step < 5; ++step) {
          overlapped.fill(world.rank(), step);
          plain.fill(world.rank(), step);
          for (const std::size_t i : some_order(world.rank(), step)) {
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
}

// The counts of the buckets that travelled since then, in the order of their start.
std::vector<std::int64_t> counts_since(const Communicator& world, std::uint64_t since) {
  std::vector<std::int64_t> counts;
  for (const Record& record : world.ledger().records(since)) {
    if (record.tag == "gradients") counts.push_back(record.count);
  }
  return counts;
}

// The first step sends buckets in the order given to the constructor; later steps in the order of readiness of rank 0's
// first step, whatever the current order is.
TEST(GradientBuckets, TravelInTheOrderOfRank0sFirstStep) {
  run_threads(3, [](const Communicator& world) {
    const Gradients gradients({100, 200, 300, 400});
    GradientBuckets buckets(gradients.all, world, Stream("dp"), {.bucket_bytes = 4});
    const std::vector<std::vector<std::size_t>> orders{{3, 1, 2, 0}, {0, 1, 2, 3}, {2, 3, 1, 0}};
    for (int step = 0; step < 3; ++step) {
      const std::uint64_t since = world.ledger().next_sequence();
      EXPECT_EQ(buckets.knows_order(), step > 0);
      gradients.fill(world.rank(), step);
      for (const std::size_t i : orders[static_cast<std::size_t>((world.rank() + step) % 3)]) buckets.ready(i);
      buckets.finish();
      using testing::ElementsAre;
      if (step == 0) {
        EXPECT_THAT(counts_since(world, since), ElementsAre(100, 200, 300, 400));
      } else {
        EXPECT_THAT(counts_since(world, since), ElementsAre(400, 200, 300, 100));
      }
    }
  });
}

// Gradients that lie apart, or in another order than they become ready, are packed. The sums are the same, and each type has
// its own buckets.
TEST(GradientBuckets, PackWhatDoesNotLieTogether) {
  for (const bool scatter : {false, true}) {
    run_threads(3, [&](const Communicator& world) {
      const Gradients one({10, 20, 30});
      const Gradients other({40, 50});
      const Gradients wide({7}, DType::f64);
      GradientBuckets buckets({one.all[2], other.all[0], wide.all[0], one.all[0], other.all[1], one.all[1]}, world,
                              Stream("dp"), {.scatter = scatter});
      EXPECT_EQ(buckets.bucket_count(), 3U);
      for (int step = 0; step < 3; ++step) {
        for (const Gradients* each : {&one, &other, &wide}) each->fill(world.rank(), step);
        for (const std::size_t i : {5, 3, 1, 0, 2, 4}) buckets.ready(i);
        buckets.finish();
        for (const Gradients* each : {&one, &other, &wide}) {
          for (std::int64_t i = 0; i < each->memory.size(); ++i) {
            double sum = 0;
            for (int rank = 0; rank < 3; ++rank) sum += Gradients::value(rank, step, i);
            ASSERT_NEAR(each->memory.at(i), sum, 1e-5) << i;
          }
        }
      }
      EXPECT_EQ(buckets.bucket_count(), 3U);
    });
  }
}

// After flush() in rank 0's first step, no later bucket holds gradients from both sides of that place.
TEST(GradientBuckets, EndWhereTheFirstStepFlushed) {
  run_threads(2, [](const Communicator& world) {
    const Gradients gradients({10, 20, 30, 40});
    GradientBuckets buckets(gradients.all, world, Stream("dp"), {.first_bucket_bytes = 4});
    EXPECT_EQ(buckets.bucket_count(), 3U);  // 10 | 20 30 | 40
    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < 4; ++i) {
        buckets.ready(i);
        if (i == 1 && world.rank() == 0) buckets.flush();
      }
      buckets.finish();
      EXPECT_EQ(buckets.bucket_count(), 4U);  // 10 | 20 | 30 | 40
    }
  });
}

// A rank holds the sum of its share of each postponed bucket. The shares of all ranks cover every element once, with the
// same bits as without postponement.
TEST(GradientBuckets, LeaveEachRankItsShareOfWhatIsPostponed) {
  for (const int ranks : {1, 2, 3}) {
    run_threads(ranks, [&](const Communicator& world) {
      const Gradients whole(sizes);
      const Gradients shared(sizes);
      const GradientBuckets::Options options{.bucket_bytes = 9000, .scatter = true};
      GradientBuckets all(whole.all, world, Stream("dp"), options);
      GradientBuckets some(shared.all, world.duplicate("postponed"), Stream("dp"), options);
      for (int step = 0; step < 3; ++step) {
        if (step == 1) some.set_postponed({false, true, false, true});
        if (step == 2) some.set_postponed({true, true, true, true});
        const std::vector<ElementRange> shares = some.shares();
        whole.fill(world.rank(), step);
        shared.fill(world.rank(), step);
        for (const std::size_t i : some_order(0, 0)) {
          all.ready(i);
          some.ready(i);
        }
        all.finish();
        some.finish();
        std::int64_t complete = 0;
        for (const ElementRange& range : some.complete()) complete += range.count;
        EXPECT_EQ(complete, step == 0 ? 9518 : step == 1 ? 7000 : 0);
        std::vector<ElementRange> known = some.complete();
        known.insert(known.end(), shares.begin(), shares.end());
        for (const ElementRange& range : known) {
          for (std::int64_t i = 0; i < range.count; ++i) {
            ASSERT_EQ(shared.all[range.tensor].at(range.first + i), whole.all[range.tensor].at(range.first + i));
          }
        }
        EXPECT_EQ(some.shares(), shares);
        std::int64_t mine = 0;
        for (const ElementRange& range : shares) mine += range.count;
        world.all_reduce(&mine, &mine, 1, DType::i64, ReduceOp::sum, Stream::inline_());
        EXPECT_EQ(mine, shared.memory.size());
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
    // The first bucket holds this gradient only. It must arrive although the others are not ready; otherwise this loop never
    // ends.
    while (arrived() == 0) std::this_thread::yield();
    EXPECT_EQ(world.ledger().records(since).size(), 1U);
    EXPECT_EQ(world.ledger().records(since)[0].count, 3000);
    EXPECT_EQ(world.ledger().records(since)[0].tag, "gradients");
    for (std::size_t i = 1; i < sizes.size(); ++i) buckets.ready(i);
    buckets.finish();
    EXPECT_EQ(counts_since(world, since).size(), 4U);

    const std::uint64_t then = world.ledger().next_sequence();
    for (std::size_t i = 0; i < sizes.size(); ++i) plain.ready(i);
    EXPECT_EQ(counts_since(world, then).size(), 0U);
    plain.finish();
    EXPECT_EQ(counts_since(world, then).size(), 4U);
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

TEST(GradientBuckets, RefuseWhatWouldSumWrongNumbers) {
  run_threads(2, [](const Communicator& world) {
    const Gradients gradients({10, 20, 30});
    GradientBuckets buckets(gradients.all, world, Stream("dp"), {.bucket_bytes = 100});
    buckets.ready(1);
    expect_refusal([&] { buckets.ready(1); }, "Gradient 1 of 3 is ready twice");
    expect_refusal([&] { buckets.ready(3); }, "does not exist");
    buckets.ready(0);
    expect_refusal([&] { buckets.finish(); }, "Gradient 2 of 3 was not ready");
    buckets.ready(2);  // the refusals have changed nothing
    buckets.finish();

    expect_refusal([&] { buckets.set_postponed({true, false}); }, "with scatter");
    GradientBuckets in_halves(gradients.all, world, Stream("dp"), {.bucket_bytes = 100, .scatter = true});
    expect_refusal([&] { in_halves.set_postponed({true, false}); }, "after the first step");
    for (std::size_t i = 0; i < 3; ++i) in_halves.ready(i);
    in_halves.finish();
    expect_refusal([&] { in_halves.set_postponed({true}); }, "1 flags do not say which of 2 buckets");
    in_halves.set_postponed({true, false});
  });
}

}  // namespace
}  // namespace stretto
