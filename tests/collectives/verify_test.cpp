// Proof for every algorithm at many rank counts; and plans with one fault each, which the verifier must refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "stretto/error.hpp"
#include "stretto/plan.hpp"

namespace stretto {
namespace {

std::vector<Plan> plans_of_all_ranks(Collective collective, Algorithm algorithm, int size, std::int64_t count,
                                     int root = 0) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < size; ++rank) plans.push_back(make_plan({collective, algorithm, rank, size, count, root}));
  return plans;
}

struct Case {
  Collective collective;
  Algorithm algorithm;
};

std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                      Collective::broadcast, Collective::reduce, Collective::barrier}) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      if (!needs_nodes(algorithm)) cases.push_back({collective, algorithm});
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(name(info.param.collective)) + "_" + name(info.param.algorithm);
}

class EveryAlgorithm : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm, testing::ValuesIn(every_case()), case_name);

void expect_proof(const Case& which, int size, std::int64_t count, int root) {
  const auto plans = plans_of_all_ranks(which.collective, which.algorithm, size, count, root);
  for (const bool in_place : {false, true}) {
    const auto fault = verify(plans, in_place);
    ASSERT_FALSE(fault) << *fault << " (" << size << " ranks, " << count << " elements, root " << root << ")";
  }
}

// Counts below, at and above the number of ranks, dividing and not; every root of small groups.
TEST_P(EveryAlgorithm, IsProvenAtOneTo64Ranks) {
  const auto [collective, algorithm] = GetParam();
  const bool whole_vector = collective == Collective::all_reduce;
  for (int size = 1; size <= 64; ++size) {
    const std::vector<std::int64_t> counts = whole_vector
                                                 ? std::vector<std::int64_t>{0, 1, size - 1, size, size + 3, 2L * size + 1}
                                                 : std::vector<std::int64_t>{0, 1, 2, 3};
    for (const std::int64_t count : counts) {
      const int roots = has_root(collective) ? (size <= 9 ? size : 2) : 1;
      for (int r = 0; r < roots; ++r) expect_proof({collective, algorithm}, size, count, size <= 9 ? r : r * (size - 1));
    }
  }
}

TEST_P(EveryAlgorithm, IsProvenAtLargeRankCounts) {
  const auto [collective, algorithm] = GetParam();
  for (const int size : {127, 128, 255, 256, 1000, 1024}) {
    const std::int64_t count = collective == Collective::all_reduce ? size + 3 : 1;
    expect_proof({collective, algorithm}, size, count, has_root(collective) ? size / 3 : 0);
  }
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

// ---- one fault each. Every mutation is applied at every place where it changes something, and must be refused there.

using Mutation = std::function<bool(Plan&, std::size_t step)>;  // false: does not apply at this step

Step& step_of(Plan& plan, std::size_t i) { return plan.lanes[0].steps[i]; }
bool talks(const Step& step) { return step.kind != StepKind::copy; }

struct NamedMutation {
  const char* name;
  Mutation apply;
};

const std::vector<NamedMutation>& mutations() {
  static const std::vector<NamedMutation> list = {
      {"step_dropped",
       [](Plan& plan, std::size_t i) {
         Lane& lane = plan.lanes[0];
         lane.steps.erase(lane.steps.begin() + static_cast<std::ptrdiff_t>(i));
         for (std::size_t& end : lane.round_ends) end -= end > i ? 1 : 0;
         return true;
       }},
      {"step_repeated",
       [](Plan& plan, std::size_t i) {
         Lane& lane = plan.lanes[0];
         if (!talks(lane.steps[i])) return false;  // copying twice is harmless
         const Step copy = lane.steps[i];
         lane.steps.push_back(copy);
         lane.round_ends.push_back(lane.steps.size());
         return true;
       }},
      {"peer_swapped",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         if (!talks(step) || plan.request.size < 3) return false;
         do step.peer = (step.peer + 1) % plan.request.size;
         while (step.peer == plan.request.rank);
         return true;
       }},
      {"source_moved",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         if (step.kind == StepKind::recv) return false;
         step.source.offset += 1;
         return true;
       }},
      {"destination_moved",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         if (step.kind == StepKind::send) return false;
         step.destination.offset += 1;
         return true;
       }},
      {"count_shortened",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         step.source.count -= step.kind != StepKind::recv ? 1 : 0;
         step.destination.count -= step.kind != StepKind::send ? 1 : 0;
         return true;
       }},
      {"reduction_forgotten",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         if (step.kind != StepKind::recv_reduce) return false;
         step.kind = StepKind::recv;
         return true;
       }},
      {"reduction_added",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         if (step.kind != StepKind::recv) return false;
         step.kind = StepKind::recv_reduce;
         step.source = step.destination;
         return true;
       }},
      {"direction_reversed",
       [](Plan& plan, std::size_t i) {
         Step& step = step_of(plan, i);
         if (step.kind != StepKind::send) return false;
         step.kind = StepKind::recv;
         step.destination = step.source;
         return step.destination.buffer != Buffer::input;
       }},
      {"rounds_merged",
       [](Plan& plan, std::size_t i) {
         auto& ends = plan.lanes[0].round_ends;
         // Where the next round sends what this one receives; elsewhere merging can be harmless.
         const auto end = std::find(ends.begin(), ends.end(), i + 1);
         if (end == ends.end() || end + 1 == ends.end()) return false;
         const Slice& made = step_of(plan, i).destination;
         const Step& next = step_of(plan, i + 1);
         if (step_of(plan, i).kind == StepKind::send || next.kind != StepKind::send) return false;
         if (next.source.buffer != made.buffer || next.source.offset != made.offset) return false;
         ends.erase(end);
         return true;
       }},
      {"scratch_too_small",
       [](Plan& plan, std::size_t i) {
         const Step& step = step_of(plan, i);
         const bool last_of_scratch = step.kind != StepKind::send && step.destination.buffer == Buffer::scratch &&
                                      step.destination.offset + step.destination.count == plan.scratch_count;
         plan.scratch_count -= 1;
         return last_of_scratch;
       }},
  };
  return list;
}

class EveryMutation : public testing::TestWithParam<NamedMutation> {};
INSTANTIATE_TEST_SUITE_P(All, EveryMutation, testing::ValuesIn(mutations()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_P(EveryMutation, IsRefusedWhereverItApplies) {
  int applied = 0;
  for (const Case& which : every_case()) {
    for (const int size : {2, 3, 5, 6, 8}) {
      const std::int64_t count = which.collective == Collective::all_reduce ? 2L * size + 1 : 3;
      const auto good = plans_of_all_ranks(which.collective, which.algorithm, size, count);
      for (int rank = 0; rank < size; ++rank) {
        for (std::size_t i = 0; i < good[rank].lanes[0].steps.size(); ++i) {
          auto plans = good;
          if (!GetParam().apply(plans[rank], i)) continue;
          ++applied;
          EXPECT_TRUE(verify(plans, false)) << name(which.collective) << " by " << name(which.algorithm) << ", rank " << rank
                                            << " of " << size << ", step " << i << "\n"
                                            << plans[rank].to_string();
        }
      }
    }
  }
  EXPECT_GT(applied, 20);
}

TEST(Verifier, RefusesLanesThatShareMemory) {
  auto plans = plans_of_all_ranks(Collective::all_gather, Algorithm::ring, 1, 4);
  EXPECT_FALSE(verify(plans, false));
  plans[0].lanes.push_back(plans[0].lanes[0]);
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("Lanes 0 and 1"));
}

// With buffering, sending before receiving would work; a plan must not rely on it.
TEST(Verifier, RefusesAPlanThatNeedsBuffering) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    Plan plan = make_plan({Collective::all_gather, Algorithm::ring, rank, 2, 1});
    Lane& lane = plan.lanes[0];
    ASSERT_EQ(lane.steps.size(), 3U);  // copy | send, recv
    lane.round_ends = {1, 2, 3};
    plans.push_back(plan);
  }
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("waits forever"));
}

TEST(MakePlan, RefusesWhatItCannotDoInASentence) {
  const auto sentence = [](const PlanRequest& request) -> std::string {
    try {
      make_plan(request);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(sentence({Collective::broadcast, Algorithm::ring, 0, 4, 1}),
              testing::HasSubstr("broadcast cannot be done by ring"));
  EXPECT_THAT(sentence({Collective::broadcast, Algorithm::binomial, 0, 4, 1, 4}), testing::HasSubstr("root or peer 4"));
  EXPECT_THAT(sentence({Collective::all_reduce, Algorithm::ring, 4, 4, 1}), testing::HasSubstr("Rank 4 is outside"));
  EXPECT_THAT(sentence({Collective::all_reduce, Algorithm::ring, 0, 4, -1}), testing::HasSubstr("-1"));
}

}  // namespace
}  // namespace stretto
