// Rings (Patarasuk & Yuan 2009; NCCL's). Each rank owns one chunk of the vector. Every rank sends only to the next rank and
// receives only from the previous one, so that each link carries each chunk once per phase. Bandwidth-optimal at every p,
// but with p - 1 rounds per phase. With several lanes, each lane carries its part of every chunk around by itself. In a
// bidirectional ring half of the lanes go the other way round, which helps if the two directions are different wires.
#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

struct Ring {
  Ring(const PlanRequest& request, int which, int lane_count)
      : rank(request.rank), size(request.size), lane(which), lanes(lane_count), shares(Shares::of(request)) {
    forward = request.method.algorithm != Algorithm::bidirectional_ring || lane % 2 == 0;
  }

  int next() const { return behind(-1); }
  int before() const { return behind(1); }
  // The rank, and the chunk, that is `places` places before this rank on the way round.
  int behind(int places) const { return ((rank + (forward ? -places : places)) % size + size) % size; }
  std::int64_t offset(int chunk) const { return part_begin(shares.length(chunk), lanes, lane); }
  std::int64_t length(int chunk) const { return part_begin(shares.length(chunk), lanes, lane + 1) - offset(chunk); }
  Slice in(int chunk) const { return input(shares.begin(chunk) + offset(chunk), length(chunk)); }
  Slice out(int chunk) const { return output(shares.begin(chunk) + offset(chunk), length(chunk)); }

  int rank;
  int size;
  int lane;
  int lanes;
  Shares shares;
  bool forward;
};

int lanes_of(const PlanRequest& request) {
  return request.method.lanes * (request.method.algorithm == Algorithm::bidirectional_ring ? 2 : 1);
}

// One plan of several lanes; one_lane() writes each.
template <class OneLane>
Plan in_lanes(const PlanRequest& request, OneLane one_lane) {
  PlanBuilder plan(request);
  const int lanes = lanes_of(request);
  for (int lane = 0; lane < lanes; ++lane) {
    if (lane > 0) plan.next_lane();
    one_lane(plan, Ring(request, lane, lanes));
  }
  return plan.finish();
}

// Begins with every rank's own chunk. After p - 1 rounds the output has all others.
void gather_around(PlanBuilder& plan, const Ring& ring, const Slice& own) {
  for (int k = 0; k < ring.size - 1; ++k) {
    plan.send(ring.next(), k == 0 ? own : ring.out(ring.behind(k)));
    plan.recv(ring.before(), ring.out(ring.behind(k + 1)));
    plan.next_round();
  }
}

Cost once_around(const PlanRequest& request, double work) {
  const double steps = request.size - 1;
  return {steps, steps * lanes_of(request), steps * longest_share(request), work};
}

}  // namespace

// 2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
Cost ring_all_reduce_cost(const PlanRequest& request) {
  return once_around(request, (request.size - 1) * longest_share(request)) + once_around(request, 0);
}
Plan ring_all_reduce(const PlanRequest& request) {
  return in_lanes(request, [](PlanBuilder& plan, const Ring& ring) {
    if (ring.size == 1) plan.copy(ring.in(0), ring.out(0));
    // Chunk c starts at rank c + 1 and ends at rank c, after every rank has added its contribution.
    for (int k = 0; k < ring.size - 1; ++k) {
      const int leaving = ring.behind(k + 1);
      const int coming = ring.behind(k + 2);
      plan.send(ring.next(), k == 0 ? ring.in(leaving) : ring.out(leaving));
      plan.recv_reduce(ring.before(), ring.in(coming), ring.out(coming), k == ring.size - 2);
      plan.next_round();
    }
    gather_around(plan, ring, ring.out(ring.rank));
  });
}

// (p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma, where n is the whole input
Cost ring_reduce_scatter_cost(const PlanRequest& request) {
  return once_around(request, (request.size - 1) * longest_share(request));
}
Plan ring_reduce_scatter(const PlanRequest& request) {
  const std::int64_t longest = Shares::of(request).longest();
  Plan plan = in_lanes(request, [&](PlanBuilder& lane, const Ring& ring) {
    const Slice result = output(ring.offset(ring.rank), ring.length(ring.rank));
    if (ring.size == 1) lane.copy(ring.in(0), result);
    // Two halves of scratch: a chunk is sent from one while the next is received into the other.
    const std::int64_t half = part_begin(longest, ring.lanes, ring.lane);
    Slice leaving = ring.in(ring.behind(1));
    for (int k = 0; k < ring.size - 1; ++k) {
      const bool last = k == ring.size - 2;
      const int coming = ring.behind(k + 2);
      const Slice arrives = last ? result : scratch((k % 2) * longest + half, ring.length(coming));
      lane.send(ring.next(), leaving);
      lane.recv_reduce(ring.before(), ring.in(coming), arrives, last);
      lane.next_round();
      leaving = arrives;
    }
  });
  plan.scratch_count = request.size > 2 ? 2 * longest : 0;
  return plan;
}

// (p-1) alpha + (p-1)/p n beta + n/p gamma, where n is the whole output
Cost ring_all_gather_cost(const PlanRequest& request) { return once_around(request, longest_share(request)); }
Plan ring_all_gather(const PlanRequest& request) {
  return in_lanes(request, [](PlanBuilder& plan, const Ring& ring) {
    const Slice own = input(ring.offset(ring.rank), ring.length(ring.rank));
    plan.copy(own, ring.out(ring.rank));  // while the first chunks travel
    gather_around(plan, ring, own);
  });
}

}  // namespace stretto::plans
