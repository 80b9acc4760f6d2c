#include "collectives/calls/user_plan.hpp"

#include <algorithm>
#include <set>

#include "collectives/proof/verify_steps.hpp"
#include "core/files/text_lines.hpp"

namespace stretto {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 40;  // of one buffer: sums over all ranks fit into 64 bits

bool orders(StepKind kind) { return kind == StepKind::signal || kind == StepKind::wait; }
bool writes_elsewhere(const Step& step, int rank) {
  return step.kind == StepKind::copy_to_all || (step.kind == StepKind::read_reduce && step.peer != rank);
}

template <class Visit>
void for_each_step(const Plan& plan, Visit visit) {
  for (const Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) visit(step);
  }
}

// The numbers of a plan, before anything is computed with them.
void check_numbers(const Plan& plan) {
  const auto fits = [](std::int64_t number) { return number >= 0 && number <= most_elements; };
  const auto check_slice = [&](const Slice& slice) {
    demand(static_cast<int>(slice.buffer) <= static_cast<int>(Buffer::packed) &&
               static_cast<int>(slice.format) < quantized_formats && fits(slice.offset) && fits(slice.count),
           "A slice of {} elements from {} is in no memory.", slice.count, slice.offset);
  };
  bool fit = fits(plan.scratch_count);
  for (const std::int64_t count : plan.packed_counts) fit &= fits(count);
  for (const std::int64_t count : plan.residual_counts) fit &= fits(count);
  demand(fit, "Its scratch, packed memory or errors are negative, or more than {} elements.", most_elements);
  demand(plan.lanes.size() <= most_lanes, "It has {} lanes; a plan has at most {}.", plan.lanes.size(), most_lanes);
  for_each_step(plan, [&](const Step& step) {
    demand(static_cast<int>(step.kind) <= static_cast<int>(StepKind::copy_to_all), "It has a step of kind {}.",
           static_cast<int>(step.kind));
    check_slice(step.source);
    check_slice(step.destination);
    demand(step.vectors >= 1 && step.vectors <= (1 << 20) && fits(step.apart) && fits(step.apart * step.vectors) &&
               fits(step.residual) && static_cast<int>(step.hop) < hops,
           "It has a step of {} vectors, {} apart.", step.vectors, step.apart);
  });
}

// What the executors take for granted of a step, beside what a proof demands.
void check_step(const Step& step, bool in_memory) {
  const bool local = !between_memories(step.kind) && step.kind != StepKind::send && step.kind != StepKind::recv &&
                     step.kind != StepKind::recv_reduce;
  demand(step.peer == -1 || !(local || step.kind == StepKind::signal), "A step without a peer names rank {}; leave -1.",
         step.peer);
  const std::int64_t count = step.kind == StepKind::send ? step.source.count : step.destination.count;
  demand(count > 0 || orders(step.kind), "It has a step without elements; leave it out.");
  demand(!quantizes(step.kind), "It quantizes; only the library's own plans can.");
  demand(between_memories(step.kind) == in_memory || (in_memory && step.kind == StepKind::copy),
         "It has messages or reductions beside steps between memories; these go with copies only.");
}

void check_rounds(const Lane& lane) {
  demand((lane.round_ends.empty() ? 0 : lane.round_ends.back()) == lane.steps.size() &&
             std::is_sorted(lane.round_ends.begin(), lane.round_ends.end()),
         "A lane of {} steps has rounds that do not end with them.", lane.steps.size());
  std::size_t at = 0;
  for (const std::size_t end : lane.round_ends) {
    std::set<int> to, from;
    for (; at < end; ++at) {
      const Step& step = lane.steps[at];
      if (step.kind == StepKind::send) demand(to.insert(step.peer).second, "A round sends to rank {} twice.", step.peer);
      if (step.kind == StepKind::recv || step.kind == StepKind::recv_reduce) {
        demand(from.insert(step.peer).second, "A round receives from rank {} twice.", step.peer);
      }
    }
  }
}

// A rank learns from the signals for which it waits where the buffers of the others are. Before it writes there, it must
// have heard all of them, so that all find at the same step that a buffer cannot be mapped.
void check_signals(const Plan& plan) {
  const int rank = plan.request.rank, size = ranks_of(plan.request);
  const bool writes = rules_of(plan) == Algorithm::push;
  std::set<int> heard, heard_now;  // since the last signal
  bool signaled = false, heard_all = size == 1;
  const auto check_heard = [&](int peer) {
    const bool known = peer == rank || (writes ? heard_all : heard.count(peer) > 0);
    demand(known, "It accesses rank {}'s memory before it has waited for {}.", peer, writes ? "all other ranks" : "it");
  };
  for_each_step(plan, [&](const Step& step) {
    if (step.kind == StepKind::signal) {
      signaled = true;
      heard_now.clear();
    } else if (step.kind == StepKind::wait) {
      demand(signaled, "It waits for rank {} before its own first signal.", step.peer);
      demand(heard_now.insert(step.peer).second, "It waits for rank {} twice without a signal between.", step.peer);
      heard.insert(step.peer);
      heard_all |= static_cast<int>(heard_now.size()) == size - 1;
    } else if (step.kind == StepKind::read_reduce || step.kind == StepKind::copy_to_all) {
      for (int peer = 0; peer < size; ++peer) check_heard(peer);
    } else if (step.kind == StepKind::read) {
      check_heard(step.peer);
    }
  });
}

void check(const Plan& plan) {
  const PlanRequest& request = plan.request;
  check_numbers(plan);
  const bool in_memory = rules_of(plan) != Algorithm::user;
  demand(!in_memory || plan.lanes.size() == 1, "It has {} lanes; steps between memories take one.", plan.lanes.size());
  demand(!in_memory || request.servers == 0, "It has {} servers, which have no memory for others; let it send messages.",
         request.servers);
  std::vector<Plan> all(static_cast<std::size_t>(ranks_of(request)));  // no more than their buffers
  for (int rank = 0; rank < ranks_of(request); ++rank) {
    Plan& other = all[static_cast<std::size_t>(rank)];
    other.request = request;
    other.request.rank = rank;
    other.scratch_count = rank == request.rank ? plan.scratch_count : most_elements;
  }
  const CollectiveContract promise(all);
  const Layout layout(all, promise, false);
  const Steps steps(ranks_of(request), promise.sums(), layout);
  for (const Lane& lane : plan.lanes) {
    check_rounds(lane);
    for (const Step& step : lane.steps) {
      check_step(step, in_memory);
      steps.check(request.rank, step);
    }
  }
  if (in_memory) check_signals(plan);
}

}  // namespace

Algorithm rules_of(const Plan& plan) {
  Algorithm rules = Algorithm::user;
  for_each_step(plan, [&](const Step& step) {
    if (!between_memories(step.kind)) return;
    const Algorithm needed = writes_elsewhere(step, plan.request.rank) ? Algorithm::push : Algorithm::pull;
    rules = std::max(rules, needed);
  });
  return rules;
}

void check_plan(const Plan& plan) {
  require(is_plain_name(plan.name), "A plan is called '{}'; give it a name of letters, digits, -, _ and .", plan.name);
  require(!is_message(plan.request.collective), "The plan '{}' is for a {}; a plan is for a collective of all ranks.",
          plan.name, name(plan.request.collective));
  try {
    check(plan);
  } catch (const Refused& refused) {
    fail(ErrorCode::invalid_argument, "The plan '{}' cannot run on rank {}: {}", plan.name, plan.request.rank,
         refused.sentence);
  }
}

}  // namespace stretto
