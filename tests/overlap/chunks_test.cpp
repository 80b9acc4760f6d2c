// How many chunks, where they begin, and what the cost model says of a call.
#include "stretto/overlap/chunks.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

double seconds_with(double compute, double communication, double overhead, int chunks) {
  return std::max(compute, communication) + std::min(compute, communication) / chunks + chunks * overhead;
}

TEST(ChunkCount, IsTheBestOfAll) {
  constexpr int most = 40;
  for (const double compute : {0.0, 1e-6, 1e-4, 1e-3, 3e-2}) {
    for (const double communication : {0.0, 2e-6, 5e-4, 1e-2}) {
      for (const double overhead : {1e-7, 1e-5, 2e-3}) {
        const int chosen = chunk_count(compute, communication, overhead, most);
        ASSERT_GE(chosen, 1);
        ASSERT_LE(chosen, most);
        for (int chunks = 1; chunks <= most; ++chunks) {
          EXPECT_LE(seconds_with(compute, communication, overhead, chosen),
                    seconds_with(compute, communication, overhead, chunks) * (1 + 1e-12))
              << compute << " " << communication << " " << overhead << ": " << chosen << " or " << chunks;
        }
      }
    }
  }
  EXPECT_EQ(chunk_count(16e-4, 1, 1e-4, 100), 4);  // sqrt(16)
  EXPECT_EQ(chunk_count(1, 16e-4, 1e-4, 100), 4);
  EXPECT_EQ(chunk_count(1, 1, 0, 7), 7);
  EXPECT_EQ(chunk_count(0, 1, 0, 7), 1);
  EXPECT_EQ(chunk_count(1, 1, 1e-300, 7), 7);
}

TEST(ChunkCount, RefusesWhatIsNoTime) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(sentence_of([] { chunk_count(-1, 1, 1, 4); }), testing::HasSubstr("-1 s of computing"));
  EXPECT_THAT(sentence_of([&] { chunk_count(1, nan, 1, 4); }), testing::HasSubstr("No number of chunks"));
  EXPECT_THAT(sentence_of([] { chunk_count(1, 1, 1, 0); }), testing::HasSubstr("at least one chunk"));
  EXPECT_THAT(sentence_of([] { chunk_of(5, 2, 2); }), testing::HasSubstr("no chunk 2 of 2"));
}

TEST(ChunksPerBlock, ComeNearTheBestInAll) {
  EXPECT_EQ(chunks_per_block(36e-4, 1, 1e-4, 1, 16), 6);
  EXPECT_EQ(chunks_per_block(36e-4, 1, 1e-4, 3, 16), 2);
  EXPECT_EQ(chunks_per_block(36e-4, 1, 1e-4, 12, 16), 1);
  EXPECT_EQ(chunks_per_block(1, 1, 1e-6, 3, 16), 16);
  EXPECT_EQ(chunks_per_block(0, 0, 0, 0, 16), 1);  // of one rank
}

TEST(ChunkOf, CoversEveryRowOnceAtWholeGranules) {
  for (const std::int64_t granule : {1, 16}) {
    for (const std::int64_t rows : {0, 1, 15, 16, 17, 100, 1000}) {
      for (const int chunks : {1, 2, 3, 7, 40}) {
        std::int64_t next = 0;
        std::int64_t least = rows;
        std::int64_t most = 0;
        for (int i = 0; i < chunks; ++i) {
          const Rows chunk = chunk_of(rows, chunks, i, granule);
          EXPECT_EQ(chunk.first, next);
          EXPECT_TRUE(chunk.first % granule == 0 || chunk.first == rows);
          next += chunk.count;
          if (i + 1 < chunks) least = std::min(least, chunk.count);
          most = std::max(most, chunk.count);
        }
        EXPECT_EQ(next, rows);
        EXPECT_LE(most - least, granule) << rows << " in " << chunks;
      }
    }
  }
}

// A ring over links of which everything is known: p-1 messages one after the other.
TEST(Estimate, IsTheCostModelsFormulaOnTheRoute) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,100us");
  run_threads(4, [](const Communicator& world) {
    constexpr std::int64_t count = 100000;
    const OperationOptions ring{.method = Algorithm::ring};
    const Estimate gather = world.estimate({Collective::all_gather, nullptr, nullptr, count, DType::f32}, ring);
    EXPECT_NEAR(gather.overhead, 3 * 100e-6, 5e-6);
    EXPECT_NEAR(gather.seconds - gather.overhead, 3 * count * 4 / 1e9, 1e-4);
    // The rest is what this machine's memory costs, and much less.
    const Call uneven{Collective::all_gather,      nullptr, nullptr, 0, DType::f32, ReduceOp::sum, 0,
                      {count, count, count, count}};
    EXPECT_NEAR(world.estimate(uneven, ring).seconds, gather.seconds, gather.seconds * 1e-6);
    const Estimate message = world.estimate({Collective::send, nullptr, nullptr, count, DType::f32, ReduceOp::sum, 1});
    if (world.rank() != 1) {
      EXPECT_NEAR(message.overhead, 100e-6, 2e-6);
      EXPECT_NEAR(message.seconds, 100e-6 + count * 4 / 1e9, 4e-5);
    }
    // Whoever decided the method, and whatever it is.
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::two_shot, Algorithm::recursive_doubling}) {
      const Estimate sum =
          world.estimate({Collective::all_reduce, nullptr, nullptr, count, DType::f32}, {.method = algorithm});
      EXPECT_GT(sum.overhead, 0);
      EXPECT_GT(sum.seconds, sum.overhead);
    }
  });
}

TEST(Estimate, TellsRoutesBetweenNodesFromThoseInside) {
  const Variable links("STRETTO_LINKS", "intra=10GB/s,1us;inter=1Gb/s,200us");
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  run_threads(4, [](const Communicator& world) {
    if (world.rank() != 0) return;
    const auto message = [&](int peer) {
      return world.estimate({Collective::recv, nullptr, nullptr, 125000, DType::u8, ReduceOp::sum, peer});
    };
    EXPECT_LT(message(1).seconds, 1e-4);
    EXPECT_NEAR(message(2).seconds, 1.2e-3, 1e-4);
    EXPECT_EQ(message(2).seconds, message(3).seconds);
  });
}

TEST(Estimate, IsTheSameOnAllRanksAlsoByARule) {
  for (const char* const algorithm : {"", "all_reduce:0-inf:ring"}) {
    const Variable rule("STRETTO_ALGO", algorithm);
    run_threads(3, [](const Communicator& world) {
      std::vector<double> all(3);
      for (const std::int64_t count : {0, 1, 1000, 1000000}) {
        const Estimate mine = world.estimate({Collective::all_reduce, nullptr, nullptr, count, DType::bf16});
        EXPECT_GE(mine.seconds, mine.overhead);
        world.all_gather(&mine.seconds, all.data(), 1, DType::f64, Stream::inline_());
        EXPECT_EQ(all, std::vector<double>(3, mine.seconds));
      }
    });
  }
}

TEST(Estimate, OfUnevenAllToAllTakesTheMeanForAll) {
  run_threads(2, [](const Communicator& world) {
    const Call even{Collective::all_to_all, nullptr, nullptr, 500, DType::f32};
    const Call uneven{Collective::all_to_all, nullptr, nullptr, 0, DType::f32, ReduceOp::sum, 0, {300, 700}, {300, 700}};
    EXPECT_EQ(world.estimate(uneven, {.method = Algorithm::pairwise}).seconds,
              world.estimate(even, {.method = Algorithm::pairwise}).seconds);
    EXPECT_THAT(sentence_of([&] {
                  world.estimate({Collective::all_gather, nullptr, nullptr, -1, DType::f32});
                }),
                testing::HasSubstr("cannot be negative"));
  });
}

}  // namespace
}  // namespace stretto
