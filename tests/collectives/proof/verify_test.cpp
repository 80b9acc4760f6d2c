// Proof for every algorithm at many rank counts; and plans with one fault each, which the verifier must refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "collectives/plan/plan_builder.hpp"
#include "seed_of_the_day.hpp"
#include "stretto/error.hpp"
#include "stretto/proof.hpp"
#include "tiers.hpp"

namespace stretto {
namespace {

struct Case {
  Collective collective;
  Algorithm algorithm;
};

std::vector<Case> every_algorithm() {
  std::vector<Case> cases;
  for (int i = 0; i < static_cast<int>(Collective::send); ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const Algorithm algorithm : algorithms_for(collective)) cases.push_back({collective, algorithm});
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& parameter) {
  return std::string(name(parameter.param.collective)) + "_" + name(parameter.param.algorithm);
}

class EveryAlgorithm : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm, testing::ValuesIn(every_algorithm()), case_name);

// Up to 33 ranks every case; up to 64 every seventh; of more ranks about four, of a thousand one. These are others at each
// size and every day, and what sets them apart (roots, places, pieces) is proved for all of them at the small sizes.
void expect_proofs(const Case& parameter, int size) {
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
  if (!all_tests()) return expect_proofs(GetParam(), 255);
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

// ---- one fault each. Every mutation is applied at every place where it changes something, and must be refused there.

using Mutation = std::function<bool(Plan&, Lane&, std::size_t step)>;  // false: does not apply at this step

bool exchanges(const Step& step) {
  return step.kind == StepKind::send || step.kind == StepKind::recv || step.kind == StepKind::recv_reduce;
}
bool reaches_others(const Step& step) {
  return step.kind == StepKind::read || step.kind == StepKind::read_reduce || step.kind == StepKind::copy_to_all;
}
bool orders(const Step& step) { return step.kind == StepKind::signal || step.kind == StepKind::wait; }
bool adds(const Step& step) {
  return step.kind == StepKind::recv_reduce || step.kind == StepKind::reduce || step.kind == StepKind::read_reduce;
}

// What others wait for when this rank signals, or may still touch. The root of a reduce gives nothing that anybody wants.
bool is_told(const Plan& plan, const Step& step) {
  if (plan.request.collective == Collective::reduce && plan.request.rank == plan.request.root) return false;
  return reaches_others(step) || (step.kind == StepKind::copy && step.destination.buffer == Buffer::scratch);
}

// A wait for a rank from whom, or for whom, there is nothing to read may be left out.
bool may_be_idle(const Plan& plan, const Step& step) { return step.kind == StepKind::wait && !plan.request.counts.empty(); }

// What it copies may lie there already.
bool stays_in_scratch(const Step& step) {
  return step.kind == StepKind::copy && step.source.buffer == Buffer::scratch && step.destination.buffer == Buffer::scratch;
}

struct NamedMutation {
  const char* name;
  Mutation apply;
};

const std::vector<NamedMutation>& mutations() {
  static const std::vector<NamedMutation> list = {
      {"step_dropped",
       [](Plan& plan, Lane& lane, std::size_t i) {
         if (stays_in_scratch(lane.steps[i]) || may_be_idle(plan, lane.steps[i])) return false;
         lane.steps.erase(lane.steps.begin() + static_cast<std::ptrdiff_t>(i));
         for (std::size_t& end : lane.round_ends) end -= end > i ? 1 : 0;
         return true;
       }},
      {"step_repeated",
       [](Plan&, Lane& lane, std::size_t i) {
         // Copying and waiting twice is harmless, and so is reading again what stays as it is.
         if (!exchanges(lane.steps[i]) && lane.steps[i].kind != StepKind::signal) return false;
         const Step copy = lane.steps[i];
         lane.steps.push_back(copy);
         lane.round_ends.push_back(lane.steps.size());
         return true;
       }},
      {"peer_swapped",
       [](Plan& plan, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.peer == -1 || plan.request.size < 3 || may_be_idle(plan, step)) return false;
         do step.peer = (step.peer + 1) % plan.request.size;
         while (step.peer == plan.request.rank);
         return true;
       }},
      {"lane_changed",
       [](Plan& plan, Lane& lane, std::size_t i) {
         if (plan.lanes.size() < 2 || !exchanges(lane.steps[i])) return false;
         Lane& other = &lane == &plan.lanes[0] ? plan.lanes[1] : plan.lanes[0];
         other.steps.push_back(lane.steps[i]);
         other.round_ends.push_back(other.steps.size());
         lane.steps.erase(lane.steps.begin() + static_cast<std::ptrdiff_t>(i));
         for (std::size_t& end : lane.round_ends) end -= end > i ? 1 : 0;
         return true;
       }},
      {"source_moved",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind == StepKind::recv || orders(step)) return false;
         step.source.offset += 1;
         return true;
       }},
      {"destination_moved",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind == StepKind::send || orders(step)) return false;
         step.destination.offset += 1;
         return true;
       }},
      {"destination_in_input",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind == StepKind::send || orders(step)) return false;
         step.destination.buffer = Buffer::input;
         return true;
       }},
      {"count_shortened",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (stays_in_scratch(step) || orders(step)) return false;
         step.source.count -= step.kind != StepKind::recv ? 1 : 0;
         step.destination.count -= step.kind != StepKind::send ? 1 : 0;
         return true;
       }},
      {"vector_left_out",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind != StepKind::reduce || step.source.count == step.destination.count) return false;
         step.source.count -= step.destination.count;
         return true;
       }},
      {"reduction_forgotten",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (!adds(step) || step.source.count == 0) return false;
         if (step.kind == StepKind::reduce && step.source.count == step.destination.count) return false;
         if (step.kind == StepKind::read_reduce && step.peer == everybody) return false;
         step.kind = step.kind == StepKind::reduce        ? StepKind::copy
                     : step.kind == StepKind::read_reduce ? StepKind::read
                                                          : StepKind::recv;
         step.source.count = step.destination.count;
         step.finishes = false;
         return true;
       }},
      {"reduction_added",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind != StepKind::recv) return false;
         step.kind = StepKind::recv_reduce;
         step.source = step.destination;
         return true;
       }},
      {"finish_forgotten",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (!step.finishes) return false;
         step.finishes = false;
         return true;
       }},
      {"finished_too_early",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.finishes) return false;
         step.finishes = true;
         return true;
       }},
      {"direction_reversed",
       [](Plan&, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind != StepKind::send) return false;
         step.kind = StepKind::recv;
         step.destination = step.source;
         return true;
       }},
      {"rounds_merged",
       [](Plan&, Lane& lane, std::size_t i) {
         auto& ends = lane.round_ends;
         // Where the next round sends what this one receives; elsewhere merging can be harmless.
         const auto end = std::find(ends.begin(), ends.end(), i + 1);
         if (end == ends.end() || end + 1 == ends.end()) return false;
         const Slice& made = lane.steps[i].destination;
         const Step& next = lane.steps[i + 1];
         if (lane.steps[i].kind == StepKind::send || next.kind != StepKind::send) return false;
         if (next.source.buffer != made.buffer || next.source.offset != made.offset) return false;
         ends.erase(end);
         return true;
       }},
      {"signal_before_what_it_tells",
       [](Plan& plan, Lane& lane, std::size_t i) {
         if (i + 1 == lane.steps.size() || lane.steps[i + 1].kind != StepKind::signal) return false;
         if (!is_told(plan, lane.steps[i])) return false;
         std::swap(lane.steps[i], lane.steps[i + 1]);
         return true;
       }},
      {"signal_beside_what_it_tells",
       [](Plan& plan, Lane& lane, std::size_t i) {
         if (i + 1 == lane.steps.size() || lane.steps[i + 1].kind != StepKind::signal) return false;
         if (!is_told(plan, lane.steps[i])) return false;
         lane.round_ends.erase(std::find(lane.round_ends.begin(), lane.round_ends.end(), i + 1));
         return true;
       }},
      {"wait_behind_what_it_guards",
       [](Plan&, Lane& lane, std::size_t i) {
         if (lane.steps[i].kind != StepKind::wait || i + 1 == lane.steps.size()) return false;
         if (!reaches_others(lane.steps[i + 1])) return false;
         std::swap(lane.steps[i], lane.steps[i + 1]);
         return true;
       }},
      {"wait_beside_what_it_guards",
       [](Plan&, Lane& lane, std::size_t i) {
         if (lane.steps[i].kind != StepKind::wait || i + 1 == lane.steps.size()) return false;
         if (!reaches_others(lane.steps[i + 1])) return false;
         lane.round_ends.erase(std::find(lane.round_ends.begin(), lane.round_ends.end(), i + 1));
         return true;
       }},
      {"wait_before_the_signal",
       [](Plan& plan, Lane& lane, std::size_t i) {
         if (lane.steps[i].kind != StepKind::signal || i + 1 == lane.steps.size()) return false;
         if (lane.steps[i + 1].kind != StepKind::wait || may_be_idle(plan, lane.steps[i + 1])) return false;
         std::swap(lane.steps[i], lane.steps[i + 1]);
         return true;
       }},
      {"result_for_another_rank",
       [](Plan& plan, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind != StepKind::read_reduce) return false;
         if (step.peer == everybody) {
           step.peer = plan.request.rank;
         } else {
           step.peer = (step.peer + 1) % plan.request.size;
         }
         return true;
       }},
      {"result_for_everybody",
       [](Plan& plan, Lane& lane, std::size_t i) {
         Step& step = lane.steps[i];
         if (step.kind != StepKind::read_reduce || step.peer == everybody) return false;
         // An all-reduce wants it everywhere, and scratch may have room for it.
         if (plan.request.collective == Collective::all_reduce || step.destination.buffer == Buffer::scratch) return false;
         step.peer = everybody;
         return true;
       }},
      {"scratch_too_small",
       [](Plan& plan, Lane& lane, std::size_t i) {
         const Step& step = lane.steps[i];
         const bool last_of_scratch = step.kind != StepKind::send && step.destination.buffer == Buffer::scratch &&
                                      step.destination.offset + step.destination.count == plan.scratch_count;
         plan.scratch_count -= 1;
         return last_of_scratch;
       }},
  };
  return list;
}

// Applied to each step of each lane of each rank in turn; how often it applied.
int expect_refusal(const NamedMutation& mutation, const std::vector<Plan>& good) {
  int applied = 0;
  auto plans = good;
  for (std::size_t rank = 0; rank < good.size(); ++rank) {
    for (std::size_t l = 0; l < good[rank].lanes.size(); ++l) {
      for (std::size_t i = 0; i < good[rank].lanes[l].steps.size(); ++i) {
        plans[rank] = good[rank];
        if (!mutation.apply(plans[rank], plans[rank].lanes[l], i)) continue;
        ++applied;
        EXPECT_TRUE(verify(plans, false)) << "rank " << rank << ", lane " << l << ", step " << i << "\n"
                                          << plans[rank].to_string();
      }
    }
    plans[rank] = good[rank];
  }
  return applied;
}

// Algorithms that exchange everything directly: they show the verifier what the repertoire may lack.

std::vector<Plan> by_hand(const ProofCase& which, const std::function<void(PlanBuilder&, const PlanRequest&)>& tell) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < which.request.size; ++rank) {
    const PlanRequest request = request_of(which, rank);
    PlanBuilder plan(request);
    tell(plan, request);
    plans.push_back(plan.finish());
  }
  return plans;
}

std::vector<Plan> exchange_by_hand(Collective collective, int size, bool uneven) {
  const ProofCase which{{.collective = collective, .size = size, .count = 3, .root = size - 1}, uneven};
  return by_hand(which, [](PlanBuilder& plan, const PlanRequest& request) {
    // Shares that this rank gives to, and gets from, the others; where there is none, of no elements.
    std::vector<std::int64_t> given(request.counts), got(request.counts);
    if (request.counts.empty()) given.assign(request.size, request.count);
    if (request.counts.empty()) got = given;
    if (!request.receive_counts.empty()) got = request.receive_counts;
    const bool is_root = request.rank == request.root;
    if (request.collective == Collective::gather) {
      const std::int64_t share = given[request.rank];
      given.assign(request.size, 0);
      given[request.root] = share;
      if (!is_root) got.assign(request.size, 0);
    } else if (request.collective == Collective::scatter) {
      const std::int64_t share = got[request.rank];
      got.assign(request.size, 0);
      got[request.root] = share;
      if (!is_root) given.assign(request.size, 0);
    }
    std::int64_t from = 0;
    std::int64_t to = 0;
    for (int peer = 0; peer < request.size; ++peer) {
      if (peer == request.rank) {
        plan.copy(input(from, given[peer]), output(to, got[peer]));
      } else {
        plan.send(peer, input(from, given[peer]));
        plan.recv(peer, output(to, got[peer]));
      }
      from += given[peer];
      to += got[peer];
    }
  });
}

std::vector<Plan> all_reduce_by_hand(int size, std::int64_t n) {
  const ProofCase which{{.collective = Collective::all_reduce, .size = size, .count = n}};
  return by_hand(which, [n](PlanBuilder& plan, const PlanRequest& request) {
    for (int peer = 0; peer < request.size; ++peer) {
      if (peer == request.rank) {
        plan.copy(input(0, n), scratch(peer * n, n));
      } else {
        plan.send(peer, input(0, n));
        plan.recv(peer, scratch(peer * n, n));
      }
    }
    plan.next_round();
    plan.reduce(scratch(0, request.size * n), output(0, n), true);
    plan.use_scratch(request.size * n);
  });
}

std::vector<std::vector<Plan>> plans_by_hand(int size) {
  std::vector<std::vector<Plan>> all{all_reduce_by_hand(size, 2)};
  for (const Collective collective : {Collective::all_to_all, Collective::gather, Collective::scatter}) {
    for (const bool uneven : {false, true}) all.push_back(exchange_by_hand(collective, size, uneven));
  }
  return all;
}

TEST(Verifier, ProvesPlansByHand) {
  for (const int size : {1, 2, 3, 8}) {
    for (const auto& plans : plans_by_hand(size)) {
      const Collective collective = plans[0].request.collective;
      EXPECT_EQ(verify(plans, false).value_or(""), "") << name(collective);
      if (!can_be_in_place(collective)) continue;
      EXPECT_EQ(verify(plans, true).value_or(""), "") << name(collective);
    }
  }
}

class EveryMutation : public testing::TestWithParam<NamedMutation> {};
INSTANTIATE_TEST_SUITE_P(All, EveryMutation, testing::ValuesIn(mutations()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_P(EveryMutation, IsRefusedWhereverItApplies) {
  int applied = 0;
  for (const int size : {2, 3, 5, 6, 8}) {
    for (const auto& plans : plans_by_hand(size)) applied += expect_refusal(GetParam(), plans);
    for (const auto& [collective, algorithm] : every_algorithm()) {
      for (const ProofCase& which : proof_cases(collective, algorithm, size)) {
        const PlanRequest& request = which.request;
        const std::int64_t count = collective == Collective::barrier ? 1 : counts_shares(collective) ? 3 : 2L * size + 1;
        if (request.root > 1 || (!which.uneven && request.count != count)) continue;
        // As a part, Bruck brings what is in its place already there once more: a copy that may as well be left out.
        if (needs_nodes(algorithm) && request.method.inside == Algorithm::bruck) continue;
        SCOPED_TRACE(to_string(which));
        applied += expect_refusal(GetParam(), plans_of(which));
      }
    }
  }
  EXPECT_GT(applied, 20);
  RecordProperty("applied", applied);
}

TEST(Verifier, RefusesCountsThatDoNotMatch) {
  auto plans = exchange_by_hand(Collective::all_to_all, 3, true);
  ++plans[1].request.counts[2];
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("Ranks 1 and 2 send each other"));
  plans = exchange_by_hand(Collective::gather, 3, true);
  ++plans[1].request.counts[2];
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("counts than rank 0's"));
}

TEST(Verifier, RefusesASecondFinish) {
  auto plans = all_reduce_by_hand(2, 1);
  plans[0].lanes[0].steps.push_back({StepKind::reduce, true, -1, output(0, 1), output(0, 1)});
  plans[0].lanes[0].round_ends.push_back(plans[0].lanes[0].steps.size());
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("after it was finished"));
}

// Algorithms that are deterministic promise the order of ranks; others do not.
TEST(Verifier, RefusesSumsInAnotherOrderThanThatOfTheRanks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 3; ++rank) plans.push_back(make_plan({Collective::all_reduce, Algorithm::one_shot, rank, 3, 2}));
  EXPECT_EQ(verify(plans, false).value_or(""), "");
  for (Step& step : plans[0].lanes[0].steps) {  // rank 0 has the vectors of ranks 1 and 2 change places
    if (step.kind == StepKind::recv) step.destination = scratch(2 * (3 - step.peer), 2);
  }
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("in another order than that of the ranks"));
  for (Plan& plan : plans) plan.request.method = Algorithm::ring;
  EXPECT_EQ(verify(plans, false).value_or(""), "");

  plans.clear();
  for (int rank = 0; rank < 70; ++rank) {  // whose contributors take more than a word
    plans.push_back(make_plan({Collective::reduce_scatter, Algorithm::pairwise, rank, 70, 1}));
  }
  EXPECT_EQ(verify(plans, false).value_or(""), "");
  for (Plan& plan : plans) plan.request.method = Algorithm::direct;
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("in another order than that of the ranks"));
}

// Reading and writing the same memory is fine element by element, but not shifted.
TEST(Verifier, RefusesACopyThatOverlapsItself) {
  auto plans = exchange_by_hand(Collective::scatter, 1, false);
  Lane& lane = plans[0].lanes[0];
  plans[0].scratch_count = 4;
  lane.steps.push_back({StepKind::copy, false, -1, output(0, 3), scratch(0, 3)});
  lane.round_ends.push_back(lane.steps.size());
  EXPECT_EQ(verify(plans, false).value_or(""), "");
  lane.steps.push_back({StepKind::copy, false, -1, scratch(0, 3), scratch(1, 3)});
  lane.round_ends.push_back(lane.steps.size());
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("the same step writes elsewhere"));
}

TEST(Verifier, HasNothingToProveInPlaceWhereThereIsNoSuchForm) {
  EXPECT_THROW(verify(exchange_by_hand(Collective::all_to_all, 2, false), true), Error);
}

TEST(Verifier, RefusesLanesThatShareMemory) {
  std::vector<Plan> plans{make_plan({Collective::all_gather, Algorithm::ring, 0, 1, 4})};
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

// ---- ranks that share memory

using Tell = void (*)(PlanBuilder&, const PlanRequest&);

void for_others(const PlanRequest& request, const std::function<void(int)>& visit) {
  for (int peer = 0; peer < request.size; ++peer) {
    if (peer != request.rank) visit(peer);
  }
}

// Everybody sums everything for itself.
std::vector<Plan> sums_of_all(int size, Tell before, Tell between, Tell after) {
  const ProofCase which{{.collective = Collective::all_reduce, .size = size, .count = 2}};
  return by_hand(which, [&](PlanBuilder& plan, const PlanRequest& request) {
    before(plan, request);
    plan.next_round();
    between(plan, request);
    plan.next_round();
    plan.read_reduce(input(0, 2), request.rank, output(0, 2));
    plan.next_round();
    after(plan, request);
  });
}
void nothing(PlanBuilder&, const PlanRequest&) {}
void tell(PlanBuilder& plan, const PlanRequest&) { plan.signal(); }
void wait_for_all(PlanBuilder& plan, const PlanRequest& request) {
  for_others(request, [&](int peer) { plan.wait(peer); });
}
void tell_and_wait(PlanBuilder& plan, const PlanRequest& request) {
  plan.signal();
  plan.next_round();
  wait_for_all(plan, request);
}

std::string refusal(const std::vector<Plan>& plans, bool in_place = false) { return verify(plans, in_place).value_or(""); }

TEST(SharedMemory, IsOrderedBySignalsAndWaits) {
  EXPECT_EQ(refusal(sums_of_all(3, tell, wait_for_all, tell_and_wait)), "");
  // What one rank overwrites others still read.
  EXPECT_THAT(refusal(sums_of_all(3, tell, wait_for_all, tell_and_wait), true), testing::HasSubstr("at the same time"));
}

TEST(SharedMemory, MayNotBeTouchedBeforeItsOwnerHasBegun) {
  EXPECT_THAT(refusal(sums_of_all(2, nothing, nothing, tell_and_wait)),
              testing::HasSubstr("reads element 0 of rank 0's input, which may not have begun"));
  EXPECT_THAT(refusal(sums_of_all(2, tell, nothing, tell_and_wait)), testing::HasSubstr("may not have begun"));
}

TEST(SharedMemory, MayNotBeTouchedWhenItsOwnerMayBeDone) {
  EXPECT_THAT(refusal(sums_of_all(2, tell, wait_for_all, nothing)),
              testing::HasSubstr("Rank 0 may be done while rank 1 still reads element 0 of rank 0's input"));
  EXPECT_THAT(refusal(sums_of_all(2, tell, wait_for_all, tell)), testing::HasSubstr("may be done while"));
  // The slots of packets are kept; those of others are not.
  std::vector<Plan> plans;
  for (int rank = 0; rank < 3; ++rank) plans.push_back(make_plan({Collective::all_reduce, Algorithm::packet, rank, 3, 4}));
  EXPECT_EQ(refusal(plans), "");
  for (Plan& plan : plans) plan.request.method = Algorithm::staged;
  EXPECT_THAT(refusal(plans),
              testing::HasSubstr("Rank 0 may be done while rank 2 still reads element 0 of rank 0's scratch"));
}

// Knowledge is passed on: who has heard of a rank that has heard of another knows of both.
TEST(SharedMemory, IsOrderedThroughAThirdRank) {
  const ProofCase which{{.collective = Collective::broadcast, .size = 3, .count = 1}};
  const auto through = [&](bool heard) {
    return by_hand(which, [&](PlanBuilder& plan, const PlanRequest& request) {
      plan.signal();  // 0 has begun, and so has everybody else
      plan.next_round();
      if (request.rank == 1) plan.wait(0);
      plan.next_round();
      plan.signal();
      plan.next_round();
      if (request.rank == 2) plan.wait(heard ? 1 : 0);  // of 0, only by 1
      plan.next_round();
      if (request.rank == 0) plan.copy(input(0, 1), output(0, 1));
      if (request.rank != 0) plan.read(0, input(0, 1), output(0, 1));
      plan.next_round();
      plan.signal();
      plan.next_round();
      if (request.rank == 0) wait_for_all(plan, request);
    });
  };
  EXPECT_EQ(refusal(through(true)), "");
  auto unheard = through(true);
  Lane& lane = unheard[1].lanes[0];  // forgets to listen to 0 before it tells 2
  const auto wait =
      std::find_if(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return step.kind == StepKind::wait; });
  for (std::size_t& end : lane.round_ends) end -= end > static_cast<std::size_t>(wait - lane.steps.begin()) ? 1 : 0;
  lane.steps.erase(wait);
  EXPECT_THAT(refusal(unheard), testing::HasSubstr("of rank 0's input, which may not have begun"));
}

TEST(SharedMemory, IsRefusedWhereSignalsDoNotFitTogether) {
  auto plans = sums_of_all(3, tell, wait_for_all, tell_and_wait);
  plans[2].lanes[0].steps.push_back({StepKind::signal, false, -1, {}, {}});
  plans[2].lanes[0].round_ends.push_back(plans[2].lanes[0].steps.size());
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 2 signals 3 times, and rank 0 2 times"));
  plans = sums_of_all(2, tell, wait_for_all, tell_and_wait);
  plans[1].lanes.emplace_back();
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 1 has 2 lanes"));
  plans = sums_of_all(2, tell, wait_for_all, tell_and_wait);
  plans[1].lanes[0].round_ends.erase(plans[1].lanes[0].round_ends.begin());
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 1 signals and waits"));
  plans = sums_of_all(2, tell, wait_for_all, tell_and_wait);
  plans[0].lanes[0].steps[0] = {StepKind::send, false, 1, input(0, 1), {}};
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 0 exchanges messages"));
}

// The last signals left out by all ranks, and the waits behind them.
TEST(SharedMemory, NeedsTheClosingOfEveryPlanThatHasOne) {
  for (const auto& [collective, algorithm] : every_algorithm()) {
    if (!shares_memory(algorithm) || algorithm == Algorithm::packet) continue;
    std::vector<Plan> plans;
    for (int rank = 0; rank < 4; ++rank) plans.push_back(make_plan({collective, algorithm, rank, 4, 8, 1}));
    EXPECT_EQ(refusal(plans), "");
    for (Plan& plan : plans) {
      Lane& lane = plan.lanes[0];
      while (lane.steps.back().kind == StepKind::wait) lane.steps.pop_back();
      ASSERT_EQ(lane.steps.back().kind, StepKind::signal);
      lane.steps.pop_back();
      while (!lane.round_ends.empty() && lane.round_ends.back() > lane.steps.size()) lane.round_ends.pop_back();
    }
    EXPECT_THAT(refusal(plans), testing::HasSubstr("may be done while rank")) << name(collective) << name(algorithm);
  }
}

}  // namespace
}  // namespace stretto
