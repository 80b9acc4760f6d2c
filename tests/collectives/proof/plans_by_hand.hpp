#pragma once
#include <functional>
#include <vector>

#include "collectives/plan/plan_builder.hpp"
#include "stretto/planning/proof.hpp"

// Algorithms that exchange everything directly: they show the verifier what the repertoire may lack.
namespace stretto {

inline std::vector<Plan> by_hand(const ProofCase& which, const std::function<void(PlanBuilder&, const PlanRequest&)>& tell) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < which.request.size; ++rank) {
    const PlanRequest request = request_of(which, rank);
    PlanBuilder plan(request);
    tell(plan, request);
    plans.push_back(plan.finish());
  }
  return plans;
}

inline std::vector<Plan> exchange_by_hand(Collective collective, int size, bool uneven) {
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

inline std::vector<Plan> all_reduce_by_hand(int size, std::int64_t n) {
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

inline std::vector<std::vector<Plan>> plans_by_hand(int size) {
  std::vector<std::vector<Plan>> all{all_reduce_by_hand(size, 2)};
  for (const Collective collective : {Collective::all_to_all, Collective::gather, Collective::scatter}) {
    for (const bool uneven : {false, true}) all.push_back(exchange_by_hand(collective, size, uneven));
  }
  return all;
}

}  // namespace stretto
