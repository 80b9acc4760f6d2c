// Plans with one fault each, which the verifier must refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "every_algorithm.hpp"
#include "plans_by_hand.hpp"
#include "stretto/planning/proof.hpp"

namespace stretto {
namespace {

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

// Every mutation is applied at every place where it changes something, and must be refused there.
struct NamedMutation {
  const char* name;
  std::function<bool(Plan&, Lane&, std::size_t step)> apply;  // false: does not apply at this step
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

}  // namespace
}  // namespace stretto
