// Bruck's algorithms (Bruck et al. 1997): ceil(log2 p) messages for any number of ranks. They cost local copies, and
// all-to-all sends every block about log2(p) / 2 times. For small vectors.
#include <bit>
#include <vector>

#include "collectives/plans/generators.hpp"
#include "core/fail.hpp"

namespace stretto::plans {
namespace {

// Returns how many of the numbers below `size` have this bit set.
int numbers_with(int bit, int size) {
  const int whole = size / (2 * bit) * bit;
  return whole + std::max(0, size % (2 * bit) - bit);
}

void require_even(const PlanRequest& request) {
  require(request.counts.empty(), "{} by {} takes one count for all ranks; choose {} or {} for uneven counts.",
          name(request.collective), name(Algorithm::bruck), name(Algorithm::pairwise), name(Algorithm::direct));
}

}  // namespace

// ceil(log2 p) alpha + (p-1)/p n beta + (p+1)/p n gamma, where n is the whole output
Cost bruck_all_gather_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  if (request.size == 1) return {0, 0, 0, share};
  const double rounds = std::bit_width(static_cast<unsigned>(request.size - 1));
  return {rounds, rounds, (request.size - 1) * share, (request.size + 1) * share};
}
Plan bruck_all_gather(const PlanRequest& request) {
  PlanBuilder plan(request);
  const int rank = request.rank;
  const int size = request.size;
  const Shares shares = Shares::of(request);
  const Slice own = input(0, shares.length(rank));
  if (size == 1) {
    plan.copy(own, output(0, own.count));
    return plan.finish();
  }

  // Scratch holds the shares from this rank's own on, in circular order. So it always holds, as one slice, the shares that
  // the previous rank needs.
  const std::int64_t to_end = shares.length(rank, size - rank);
  const auto held = [&](int places) {
    return rank + places <= size ? shares.length(rank, places) : to_end + shares.begin(rank + places - size);
  };
  plan.copy(own, scratch(0, own.count));
  plan.next_round();
  for (int have = 1; have < size; have *= 2) {
    const int more = std::min(have, size - have);
    plan.send((rank - have + size) % size, scratch(0, held(more)));
    plan.recv((rank + have) % size, scratch(held(have), held(have + more) - held(have)));
    plan.next_round();
  }
  plan.copy(scratch(0, to_end), output(shares.begin(rank), to_end));
  plan.copy(scratch(to_end, shares.begin(rank)), output(0, shares.begin(rank)));
  plan.use_scratch(shares.total());
  return plan.finish();
}

// ceil(log2 p) alpha + about log2(p)/2 n (beta + gamma) + n gamma, where n is the whole input
Cost bruck_all_to_all_cost(const PlanRequest& request) {
  require_even(request);
  const auto block = static_cast<double>(request.count);
  Cost cost{0, 0, 0, request.size * block};
  for (int bit = 1; bit < request.size; bit *= 2) {
    const double elements = numbers_with(bit, request.size) * block;
    cost = cost + Cost{1, 1, elements, elements};
  }
  return cost;
}
Plan bruck_all_to_all(const PlanRequest& request) {
  require_even(request);
  PlanBuilder plan(request);
  const int rank = request.rank;
  const int size = request.size;
  const std::int64_t block = request.count;
  // A block that has j places to go takes the steps 1, 2, 4, ... whose sum is j. Each rank passes it on from its current
  // place, and packs it with the other blocks of that step in the first part of scratch. A block that arrives stays after
  // that part until its next step.
  std::vector<Slice> lies(size);
  for (int j = 0; j < size; ++j) lies[j] = input((rank + j) % size * block, block);
  std::int64_t arrivals = size / 2 * block;
  for (int bit = 1; bit < size; bit *= 2) {
    std::int64_t packed = 0;
    for (int j = bit; j < size; ++j) {
      if ((j & bit) == 0) continue;
      plan.copy(lies[j], scratch(packed, block));
      lies[j] = scratch(arrivals + packed, block);
      packed += block;
    }
    plan.next_round();
    plan.send((rank + bit) % size, scratch(0, packed));
    plan.recv((rank - bit + size) % size, scratch(arrivals, packed));
    plan.next_round();
    arrivals += packed;
  }
  for (int j = 0; j < size; ++j) plan.copy(lies[j], output((rank - j + size) % size * block, block));
  plan.use_scratch(arrivals);
  return plan.finish();
}

}  // namespace stretto::plans
