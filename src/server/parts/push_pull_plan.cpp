#include "server/parts/push_pull_plan.hpp"

#include "collectives/plan/plan_builder.hpp"

namespace stretto {
namespace {

// A part leaves while the sum of the one before comes back.
void add_worker_rounds(PlanBuilder& plan, int server, const Shares& parts, int count) {
  for (int part = 0; part <= count; ++part) {
    if (part < count) plan.send(server, input(parts.begin(part), parts.length(part)));
    if (part > 0) plan.recv(server, output(parts.begin(part - 1), parts.length(part - 1)));
    plan.next_round();
  }
}

// The sum of the workers' pushes, in their order, is added to the values: ServedRange, by server_functions::sum().
void add_server_rounds(PlanBuilder& plan, int workers, const Shares& parts, int count) {
  for (int part = 0; part <= count; ++part) {
    for (int worker = 0; worker < workers && part > 0; ++worker) {
      plan.send(worker, output(parts.begin(part - 1), parts.length(part - 1)));
    }
    if (part == count) return;
    const std::int64_t n = parts.length(part);
    const Slice pushes = scratch(0, workers * n), values = scratch(workers * n, n), sum = scratch((workers + 1) * n, n);
    for (int worker = 0; worker < workers; ++worker) plan.recv(worker, scratch(worker * n, n));
    plan.next_round();
    if (workers == 1) {
      plan.copy(pushes, sum);
    } else {
      plan.reduce(pushes, sum, false);
    }
    plan.copy(input(parts.begin(part), n), values);
    plan.next_round();
    plan.reduce(scratch(values.offset, 2 * n), output(parts.begin(part), n), true);
    plan.next_round();
  }
}

}  // namespace

Plan push_pull_plan(int rank, int workers, const std::vector<std::int64_t>& parts) {
  const Shares shares = Shares::listed(parts);
  PlanBuilder plan({.collective = Collective::all_reduce,
                    .method = Algorithm::user,
                    .rank = rank,
                    .size = workers + 1,
                    .count = shares.total()});
  const auto count = static_cast<int>(parts.size());
  if (rank < workers) {
    add_worker_rounds(plan, workers, shares, count);
  } else {
    add_server_rounds(plan, workers, shares, count);
    plan.use_scratch((workers + 2) * shares.longest());
  }
  return plan.finish();
}

}  // namespace stretto
