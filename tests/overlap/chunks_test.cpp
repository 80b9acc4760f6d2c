// The number of chunks and their boundaries.
#include "stretto/overlap/chunks.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "support/error.hpp"

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
  EXPECT_EQ(chunks_per_block(0, 0, 0, 0, 16), 1);  // a single rank has no blocks of others
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

}  // namespace
}  // namespace stretto
