// Proof for every algorithm at many rank counts, and what their plans cost.
#include <gtest/gtest.h>

#include <algorithm>

#include "every_algorithm.hpp"
#include "stretto/planning/proof.hpp"
#include "support/tiers.hpp"

namespace stretto {
namespace {

std::string case_name(const testing::TestParamInfo<AlgorithmCase>& parameter) {
  return std::string(name(parameter.param.collective)) + "_" + name(parameter.param.algorithm);
}

class EveryAlgorithm : public testing::TestWithParam<AlgorithmCase> {};
INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm, testing::ValuesIn(every_algorithm()), case_name);

// Up to 33 ranks every case; up to 64 every seventh; of more ranks about four, of a thousand one. These are others at each
// size and every day, and what sets them apart (roots, places, pieces) is proved for all of them at the small sizes.
void expect_proofs(const AlgorithmCase& parameter, int size) {
  std::vector<ProofCase> cases = proof_cases(parameter.collective, parameter.algorithm, size);
  if (size > 33) {
    const std::size_t step = size <= 64 ? 7 : std::max<std::size_t>(1, cases.size() / (size < 1000 ? 4 : 1));
    std::vector<ProofCase> some;
    for (std::size_t i = (static_cast<std::size_t>(size) + seed_of_the_day()) % std::min(step, cases.size());
         i < cases.size(); i += step)
      some.push_back(cases[i]);
    cases = some;
  }
  const auto fault = prove(cases, 1);
  ASSERT_FALSE(fault) << *fault << ", --gtest_random_seed=" << seed_of_the_day();
}

TEST_P(EveryAlgorithm, IsProvenAtOneTo64Ranks) {
  for (int size = 1; size <= 64; ++size) {
    const bool chosen = size <= 17 || (size >= 31 && size <= 33) || size == 64;
    if (chosen || all_tests()) expect_proofs(GetParam(), size);
  }
}

TEST_P(EveryAlgorithm, IsProvenAtLargeRankCounts) {
  if (!all_tests() || daily_tests()) return expect_proofs(GetParam(), 255);
  for (const int size : {127, 128, 129, 255, 256, 1000, 1024}) expect_proofs(GetParam(), size);
}

// The formulas that stand over the generators: bytes sent per rank, and rounds.
TEST(Cost, BandwidthOptimalAlgorithmsSendTheirFormula) {
  for (const int p : {2, 3, 4, 5, 6, 7, 8, 12, 16, 30, 64}) {
    const std::int64_t share = 5;
    const std::int64_t n = share * p;
    for (int rank = 0; rank < p; ++rank) {
      for (const Algorithm algorithm : {Algorithm::ring, Algorithm::recursive_halving_doubling}) {
        EXPECT_EQ(make_plan({Collective::all_reduce, algorithm, rank, p, n}).elements_sent(), 2 * (p - 1) * n / p);
        EXPECT_EQ(make_plan({Collective::reduce_scatter, algorithm, rank, p, share}).elements_sent(), (p - 1) * n / p);
        EXPECT_EQ(make_plan({Collective::all_gather, algorithm, rank, p, share}).elements_sent(), (p - 1) * n / p);
      }
      EXPECT_EQ(make_plan({Collective::all_reduce, Algorithm::ring, rank, p, n}).rounds(), 2 * (p - 1));
    }
  }
  for (int log = 1; log <= 6; ++log) {
    const int p = 1 << log;
    EXPECT_EQ(make_plan({Collective::all_reduce, Algorithm::recursive_halving_doubling, 0, p, 4L * p}).rounds(), 2 * log);
    EXPECT_EQ(make_plan({Collective::all_reduce, Algorithm::recursive_doubling, 0, p, 4}).elements_sent(), 4 * log);
  }
}

}  // namespace
}  // namespace stretto
