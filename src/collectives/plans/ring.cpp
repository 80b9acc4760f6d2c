// Rings (Patarasuk & Yuan 2009; NCCL's). The vector is cut into p chunks; every rank sends to the next one only and receives
// from the one before it only, so that each link carries each chunk once per phase. Bandwidth-optimal at every p, at the
// price of p - 1 messages per phase.
#include <utility>

#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

struct Ring {
  explicit Ring(const PlanRequest& request, std::int64_t whole) : rank(request.rank), size(request.size), count(whole) {}

  int next() const { return (rank + 1) % size; }
  int before() const { return (rank + size - 1) % size; }
  // The chunk that lies the given number of places behind ours in the ring.
  int behind(int places) const { return ((rank - places) % size + size) % size; }
  std::int64_t begin(int chunk) const { return part_begin(count, size, chunk); }
  std::int64_t length(int chunk) const { return begin(chunk + 1) - begin(chunk); }
  Slice in(int chunk) const { return input(begin(chunk), length(chunk)); }
  Slice out(int chunk) const { return output(begin(chunk), length(chunk)); }

  int rank;
  int size;
  std::int64_t count;
};

// Every rank's own chunk is in its output; p - 1 rounds later all chunks are.
void gather_around(PlanBuilder& plan, const Ring& ring) {
  for (int k = 0; k < ring.size - 1; ++k) {
    plan.send(ring.next(), ring.out(ring.behind(k)));
    plan.recv(ring.before(), ring.out(ring.behind(k + 1)));
    plan.next_round();
  }
}

}  // namespace

// 2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
Plan ring_all_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Ring ring(request, request.count);
  if (ring.size == 1) plan.copy(ring.in(0), ring.out(0));

  // Chunk c starts at rank c + 1 and comes home to rank c, having been added to on its way by everybody.
  for (int k = 0; k < ring.size - 1; ++k) {
    const int leaving = ring.behind(k + 1);
    const int coming = ring.behind(k + 2);
    plan.send(ring.next(), k == 0 ? ring.in(leaving) : ring.out(leaving));
    plan.recv_reduce(ring.before(), ring.in(coming), ring.out(coming));
    plan.next_round();
  }
  gather_around(plan, ring);
  return plan.finish();
}

// (p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma, where n is the whole input
Plan ring_reduce_scatter(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Ring ring(request, request.count * request.size);
  const Slice result = output(0, request.count);
  if (ring.size == 1) plan.copy(ring.in(0), result);

  // Two halves of scratch: a chunk is sent from one while the next is received into the other.
  Slice leaving = ring.in(ring.behind(1));
  for (int k = 0; k < ring.size - 1; ++k) {
    const bool last = k == ring.size - 2;
    const Slice arrives = last ? result : scratch((k % 2) * request.count, request.count);
    plan.send(ring.next(), leaving);
    plan.recv_reduce(ring.before(), ring.in(ring.behind(k + 2)), arrives);
    plan.next_round();
    leaving = arrives;
  }
  plan.use_scratch(ring.size > 2 ? 2 * request.count : 0);
  return plan.finish();
}

// (p-1) alpha + (p-1)/p n beta, where n is the whole output
Plan ring_all_gather(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Ring ring(request, request.count * request.size);
  plan.copy(input(0, request.count), ring.out(ring.rank));
  plan.next_round();
  gather_around(plan, ring);
  return plan.finish();
}

}  // namespace stretto::plans
