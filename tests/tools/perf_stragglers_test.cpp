// Which ranks and links stretto-perf stragglers names.
#include <gtest/gtest.h>

#include "perf/stragglers/outliers.hpp"

namespace perf {
namespace {

// Two nodes of two ranks.
std::vector<RankRates> alike() {
  std::vector<RankRates> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    RankRates& its = ranks[static_cast<std::size_t>(rank)];
    its = {"host", rank / 2, 50e9, 10e9, std::vector<double>(4), std::vector<double>(4)};
    for (int other = 0; other < 4; ++other) {
      if (other == rank) continue;
      its.bandwidth[static_cast<std::size_t>(other)] = other / 2 == rank / 2 ? 8e9 : 1e9;
      its.latency[static_cast<std::size_t>(other)] = other / 2 == rank / 2 ? 1e-6 : 20e-6;
    }
  }
  return ranks;
}

std::string said(const std::vector<RankRates>& ranks) {
  std::string text;
  for (const std::string& sentence : outliers(ranks, 0.25)) text += sentence + "\n";
  return text;
}

TEST(StragglersBeforeAJob, NobodyIsNamedIfAllAreAlike) {
  EXPECT_EQ(said(alike()), "");
  EXPECT_EQ(said({alike().front()}), "");
}

TEST(StragglersBeforeAJob, SlowCoresAndMemoryAreNamed) {
  auto ranks = alike();
  ranks[1].products = 30e9;
  ranks[2].memory = 5e9;
  EXPECT_EQ(said(ranks),
            "Rank 1 (host) multiplies matrices at 30 GFLOP/s, 40% below the median of 50.\n"
            "Rank 2 (host) copies memory at 5 GB/s, 50% below the median of 10.\n");
  ranks[1].products = 40e9;
  ranks[2].memory = 9e9;
  EXPECT_EQ(said(ranks), "");
}

TEST(StragglersBeforeAJob, ASlowLinkIsNamedByBothEnds) {
  auto ranks = alike();
  ranks[0].bandwidth[2] = 0.4e9;
  EXPECT_EQ(said(ranks),
            "The link between ranks 0 (host) and 2 (host) is slow: a megabyte takes 2.5e+03 us, and 1e+03 is usual.\n");
}

TEST(StragglersBeforeAJob, ARankWithSlowLinksIsNamedOnce) {
  auto ranks = alike();
  for (const int other : {0, 1}) ranks[3].latency[static_cast<std::size_t>(other)] = 90e-6;
  EXPECT_EQ(said(ranks),
            "Rank 3 (host) has slow links between nodes: 8 bytes take 90 us to 2 of 2 ranks, and 20 is usual.\n");
}

}  // namespace
}  // namespace perf
