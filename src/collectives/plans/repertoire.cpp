// All algorithms: the collectives that each can perform, with the generator and the cost of each.
#include <fmt/format.h>
#include <algorithm>

#include "collectives/plan/method.hpp"
#include "collectives/plans/generators.hpp"
#include "collectives/plans/levels/part_plans.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

struct RepertoireEntry {
  Collective collective;
  Algorithm algorithm;
  Plan (*generate)(const PlanRequest&);
  Cost (*cost)(const PlanRequest&);
};

#define STRETTO_ENTRY(collective, algorithm, generator) \
  { Collective::collective, Algorithm::algorithm, plans::generator, plans::generator##_cost }

// The library's whole repertoire.
constexpr RepertoireEntry repertoire[] = {
    STRETTO_ENTRY(all_reduce, ring, ring_all_reduce),
    STRETTO_ENTRY(all_reduce, bidirectional_ring, ring_all_reduce),
    STRETTO_ENTRY(all_reduce, recursive_halving_doubling, halving_doubling_all_reduce),
    STRETTO_ENTRY(all_reduce, recursive_doubling, recursive_doubling_all_reduce),
    STRETTO_ENTRY(all_reduce, double_binary_tree, double_tree_all_reduce),
    STRETTO_ENTRY(all_reduce, one_shot, one_shot_all_reduce),
    STRETTO_ENTRY(all_reduce, two_shot, two_shot_all_reduce),
    STRETTO_ENTRY(all_reduce, two_level, two_level),
    STRETTO_ENTRY(all_reduce, three_level, two_level),
    STRETTO_ENTRY(all_reduce, server_set, server_set_all_reduce),
    STRETTO_ENTRY(all_reduce, packet, packet_all_reduce),
    STRETTO_ENTRY(all_reduce, staged, shared_all_reduce),
    STRETTO_ENTRY(all_reduce, pull, shared_all_reduce),
    STRETTO_ENTRY(all_reduce, push, push_all_reduce),
    STRETTO_ENTRY(reduce_scatter, ring, ring_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, bidirectional_ring, ring_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, recursive_halving_doubling, halving_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, pairwise, pairwise_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, direct, direct_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, two_level, two_level),
    STRETTO_ENTRY(reduce_scatter, three_level, two_level),
    STRETTO_ENTRY(reduce_scatter, packet, shared_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, staged, shared_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, pull, shared_reduce_scatter),
    STRETTO_ENTRY(all_gather, ring, ring_all_gather),
    STRETTO_ENTRY(all_gather, bidirectional_ring, ring_all_gather),
    STRETTO_ENTRY(all_gather, recursive_halving_doubling, doubling_all_gather),
    STRETTO_ENTRY(all_gather, bruck, bruck_all_gather),
    STRETTO_ENTRY(all_gather, direct, direct_all_gather),
    STRETTO_ENTRY(all_gather, two_level, two_level),
    STRETTO_ENTRY(all_gather, three_level, two_level),
    STRETTO_ENTRY(all_gather, packet, shared_all_gather),
    STRETTO_ENTRY(all_gather, staged, shared_all_gather),
    STRETTO_ENTRY(all_gather, pull, shared_all_gather),
    STRETTO_ENTRY(all_to_all, bruck, bruck_all_to_all),
    STRETTO_ENTRY(all_to_all, pairwise, pairwise_all_to_all),
    STRETTO_ENTRY(all_to_all, direct, direct_all_to_all),
    STRETTO_ENTRY(all_to_all, two_level, two_level),
    STRETTO_ENTRY(all_to_all, three_level, two_level),
    STRETTO_ENTRY(all_to_all, packet, shared_all_to_all),
    STRETTO_ENTRY(all_to_all, staged, shared_all_to_all),
    STRETTO_ENTRY(all_to_all, pull, shared_all_to_all),
    STRETTO_ENTRY(broadcast, binomial, tree_broadcast),
    STRETTO_ENTRY(broadcast, knomial, tree_broadcast),
    STRETTO_ENTRY(broadcast, double_binary_tree, double_tree_broadcast),
    STRETTO_ENTRY(broadcast, chain, chain_broadcast),
    STRETTO_ENTRY(broadcast, scatter_all_gather, scatter_all_gather_broadcast),
    STRETTO_ENTRY(broadcast, direct, direct_broadcast),
    STRETTO_ENTRY(broadcast, two_level, two_level),
    STRETTO_ENTRY(broadcast, three_level, two_level),
    STRETTO_ENTRY(broadcast, packet, shared_broadcast),
    STRETTO_ENTRY(broadcast, staged, shared_broadcast),
    STRETTO_ENTRY(broadcast, pull, shared_broadcast),
    STRETTO_ENTRY(broadcast, push, push_broadcast),
    STRETTO_ENTRY(reduce, binomial, tree_reduce),
    STRETTO_ENTRY(reduce, knomial, tree_reduce),
    STRETTO_ENTRY(reduce, double_binary_tree, double_tree_reduce),
    STRETTO_ENTRY(reduce, chain, chain_reduce),
    STRETTO_ENTRY(reduce, reduce_scatter_gather, reduce_scatter_gather_reduce),
    STRETTO_ENTRY(reduce, direct, direct_reduce),
    STRETTO_ENTRY(reduce, two_level, two_level),
    STRETTO_ENTRY(reduce, three_level, two_level),
    STRETTO_ENTRY(reduce, packet, packet_reduce),
    STRETTO_ENTRY(reduce, staged, shared_reduce),
    STRETTO_ENTRY(reduce, pull, shared_reduce),
    STRETTO_ENTRY(reduce, push, push_reduce),
    STRETTO_ENTRY(gather, binomial, tree_gather),
    STRETTO_ENTRY(gather, knomial, tree_gather),
    STRETTO_ENTRY(gather, direct, direct_gather),
    STRETTO_ENTRY(gather, packet, shared_gather),
    STRETTO_ENTRY(gather, staged, shared_gather),
    STRETTO_ENTRY(gather, pull, shared_gather),
    STRETTO_ENTRY(scatter, binomial, tree_scatter),
    STRETTO_ENTRY(scatter, knomial, tree_scatter),
    STRETTO_ENTRY(scatter, direct, direct_scatter),
    STRETTO_ENTRY(scatter, packet, shared_scatter),
    STRETTO_ENTRY(scatter, staged, shared_scatter),
    STRETTO_ENTRY(scatter, pull, shared_scatter),
    // A barrier is an all-reduce of one element whose value is not used.
    STRETTO_ENTRY(barrier, recursive_doubling, recursive_doubling_all_reduce),
    STRETTO_ENTRY(barrier, packet, packet_all_reduce),
    STRETTO_ENTRY(send, direct, direct_send),
    STRETTO_ENTRY(recv, direct, direct_recv),
};
#undef STRETTO_ENTRY

const RepertoireEntry& entry_of(const PlanRequest& request) {
  const Collective collective = request.collective;
  const Algorithm algorithm = request.method.algorithm;
  for (const RepertoireEntry& entry : repertoire) {
    if (entry.collective != collective || entry.algorithm != algorithm) continue;
    require(
        collective != Collective::all_to_all || !shares_memory(algorithm) || request.counts.empty(),
        "{} by {} takes one count for all ranks, since none knows where another's blocks lie; choose {} or {} for uneven "
        "counts.",
        name(collective), name(algorithm), name(Algorithm::pairwise), name(Algorithm::direct));
    return entry;
  }
  std::vector<std::string> names;
  for (const Algorithm known : algorithms_for(collective)) names.emplace_back(name(known));
  fail(ErrorCode::invalid_argument, "{} cannot be done by {}; choose {}.", name(collective), name(algorithm),
       fmt::join(names, " or "));
}

void check_request(const PlanRequest& request) {
  check_shape(request);
  check_method(request.method, request.quantized != QuantizedFormat::none);
}

// The plans over shared memory are those of several ranks.
bool only_copies(const PlanRequest& request) { return request.size == 1 && shares_memory(request.method.algorithm); }

Plan copying(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.copy(input(0, input_count(request)), output(0, output_count(request)));
  return plan.finish();
}

}  // namespace

const std::vector<Algorithm>& algorithms_for(Collective collective) {
  // Never destroyed: a communicator in one of the program's static objects still reads it at exit.
  static const auto& table = *[] {
    auto* const lists = new std::vector<std::vector<Algorithm>>(static_cast<std::size_t>(Collective::recv) + 1);
    for (const RepertoireEntry& entry : repertoire)
      (*lists)[static_cast<std::size_t>(entry.collective)].push_back(entry.algorithm);
    return lists;
  }();
  const auto i = static_cast<std::size_t>(collective);
  require(i < table.size(), "Collective {} is unknown.", i);
  return table[i];
}

bool can_do(Collective collective, Algorithm algorithm) {
  const auto& known = algorithms_for(collective);
  return std::find(known.begin(), known.end(), algorithm) != known.end();
}

Plan make_plan(const PlanRequest& request, plans::PartPlans& parts) {
  check_request(request);
  if (request.quantized != QuantizedFormat::none) return plans::quantized(request);
  const RepertoireEntry& entry = entry_of(request);
  if (only_copies(request)) return copying(request);
  if (request.rank >= request.size && entry.algorithm != Algorithm::server_set) {
    cost_by_level(request);  // refuses what the ranks with vectors refuse
    return PlanBuilder(request).finish();
  }
  return needs_nodes(entry.algorithm) ? plans::two_level(request, parts) : entry.generate(request);
}
Plan make_plan(const PlanRequest& request) {
  plans::PartPlans parts;
  return make_plan(request, parts);
}

LevelCost cost_by_level(const PlanRequest& request) {
  check_request(request);
  if (request.quantized != QuantizedFormat::none) {
    LevelCost sum;
    for (const LevelCost& phase : plans::quantized_phases(request)) {
      sum = {sum.inside + phase.inside, sum.between + phase.between};
    }
    return sum;
  }
  const RepertoireEntry& entry = entry_of(request);
  if (needs_nodes(entry.algorithm)) return plans::two_level_cost_by_level(request);
  return {only_copies(request) ? Cost{0, 0, 0, plans::longest_share(request)} : entry.cost(request), {}};
}

}  // namespace stretto
