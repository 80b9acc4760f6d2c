// The repertoire: what can be planned, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stretto/error.hpp"
#include "stretto/planning/cost.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(Repertoire, SaysWhatCanBeDone) {
  EXPECT_TRUE(can_do(Collective::all_reduce, Algorithm::ring));
  EXPECT_FALSE(can_do(Collective::all_reduce, Algorithm::bruck));
  EXPECT_FALSE(can_do(Collective::all_reduce, Algorithm::automatic));
}

TEST(MakePlan, RefusesWhatItCannotDoInASentence) {
  const auto sentence = [](const PlanRequest& request) { return sentence_of([&] { make_plan(request); }); };
  EXPECT_THAT(sentence({Collective::broadcast, Algorithm::ring, 0, 4, 1}),
              testing::HasSubstr("broadcast cannot be done by ring"));
  EXPECT_THAT(sentence({Collective::broadcast, Algorithm::binomial, 0, 4, 1, 4}), testing::HasSubstr("root or peer 4"));
  EXPECT_THAT(sentence({Collective::all_reduce, Algorithm::ring, 4, 4, 1}), testing::HasSubstr("Rank 4 is outside"));
  EXPECT_THAT(sentence({Collective::all_reduce, Algorithm::ring, 0, 4, -1}), testing::HasSubstr("-1"));
  for (const Algorithm algorithm : {Algorithm::bruck, Algorithm::packet, Algorithm::staged, Algorithm::pull}) {
    const PlanRequest uneven{Collective::all_to_all, algorithm, 0, 2, 0, 0, {1, 2}, {1, 0}};
    EXPECT_THAT(sentence(uneven), testing::HasSubstr("choose pairwise or direct"));
    EXPECT_THROW(cost_of(uneven), Error);
  }
  Method levels(Algorithm::two_level);
  levels.inside = Algorithm::pull;
  levels.between = Algorithm::ring;
  EXPECT_THAT(sentence({Collective::all_reduce, levels, 0, 4, 1, 0, {}, {}, 2}),
              testing::HasSubstr("has pull as a part, where reduce_scatter is done by ring or"));
}

}  // namespace
}  // namespace stretto
