// Recursive halving for reduce-scatter, recursive doubling for all-gather, and both for all-reduce (Rabenseifner 2004;
// Thakur et al. 2005). A mixed radix replaces powers of two: p = q1 q2 ... is factorised into primes, and stage i works in
// groups of qi ranks. Ranks never fold, so a phase always sends (p-1)/p n, in sum(qi - 1) messages: log2 p at powers of two,
// p - 1 at primes.
#include <vector>

#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

std::vector<int> prime_factors(int n) {
  std::vector<int> factors;
  factors.reserve(8);
  for (int q = 2; n > 1; ++q) {
    for (; n % q == 0; n /= q) factors.push_back(q);
  }
  return factors;
}

// One stage as one rank sees it. Its block of chunks [first, first + q * part) is cut into q parts. q ranks that hold the
// same block form a group; the member with digit d owns part d.
struct Stage {
  int radix;
  int first;  // chunk where the block begins
  int part;   // chunks in a part
  int digit;  // this rank's digit

  int part_first(int d) const { return first + d * part; }
  int peer(int rank, int d) const { return rank + (d - digit) * part; }
  int ahead(int places) const { return (digit + places) % radix; }
  int behind(int places) const { return (digit - places + radix) % radix; }
};

// The stages from the whole vector down to the rank's own chunk.
std::vector<Stage> stages_of(int rank, int size) {
  const std::vector<int> factors = prime_factors(size);
  std::vector<Stage> stages;
  stages.reserve(factors.size());
  int first = 0;
  int chunks = size;
  for (const int radix : factors) {
    const int part = chunks / radix;
    const int digit = (rank - first) / part;
    stages.push_back({radix, first, part, digit});
    first += digit * part;
    chunks = part;
  }
  return stages;
}

// One chunk for each rank: the rank's share.
struct Chunks {
  Shares shares;
  Slice in(int chunk, int chunks) const { return input(shares.begin(chunk), shares.length(chunk, chunks)); }
  Slice out(int chunk, int chunks) const { return output(shares.begin(chunk), shares.length(chunk, chunks)); }
};

// Halving and doubling have the same messages; doubling posts those of a stage together.
double messages_a_phase(int size) {
  double messages = 0;
  for (const int radix : prime_factors(size)) messages += radix - 1;
  return messages;
}
Cost halving_cost(const PlanRequest& request) {
  const double messages = messages_a_phase(request.size);
  const double elements = (request.size - 1) * longest_share(request);
  return {messages, messages, elements, elements};
}
Cost doubling_cost(const PlanRequest& request) {
  const double stages = static_cast<double>(prime_factors(request.size).size());
  return {stages, messages_a_phase(request.size), (request.size - 1) * longest_share(request), 0};
}

// Halving: in each stage a rank sends the others their parts of the block, and adds their contributions to its own part.
// partial(chunk, chunks, last) returns the place of the sum of the rank's part; last is true for the final sum.
template <class Partial>
void halve(PlanBuilder& plan, int rank, const Chunks& chunks, const std::vector<Stage>& stages, Partial partial) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    for (int j = 1; j < stage.radix; ++j) {
      const bool last = s + 1 == stages.size() && j == stage.radix - 1;
      const int theirs = stage.part_first(stage.ahead(j));
      const int ours = stage.part_first(stage.digit);
      const bool untouched = s == 0 && j == 1;
      plan.send(stage.peer(rank, stage.ahead(j)),
                s == 0 ? chunks.in(theirs, stage.part) : partial(theirs, stage.part, false));
      plan.recv_reduce(stage.peer(rank, stage.behind(j)),
                       untouched ? chunks.in(ours, stage.part) : partial(ours, stage.part, false),
                       partial(ours, stage.part, last), last);
      plan.next_round();
    }
  }
}

// Doubling: the same stages in reverse. All exchanges of one stage send the same part, and are in one round.
void double_back(PlanBuilder& plan, int rank, const Chunks& chunks, const std::vector<Stage>& stages) {
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    for (int j = 1; j < stage->radix; ++j) {
      plan.send(stage->peer(rank, stage->ahead(j)), chunks.out(stage->part_first(stage->digit), stage->part));
      plan.recv(stage->peer(rank, stage->behind(j)), chunks.out(stage->part_first(stage->behind(j)), stage->part));
    }
    plan.next_round();
  }
}

}  // namespace

// (sum(qi - 1) + stages) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma; 2 log2 p alpha at powers of two
Cost halving_doubling_all_reduce_cost(const PlanRequest& request) { return halving_cost(request) + doubling_cost(request); }
Plan halving_doubling_all_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Chunks chunks{Shares::of(request)};
  const auto stages = stages_of(request.rank, request.size);
  if (request.size == 1) plan.copy(chunks.in(0, 1), chunks.out(0, 1));
  halve(plan, request.rank, chunks, stages, [&](int chunk, int length, bool) { return chunks.out(chunk, length); });
  double_back(plan, request.rank, chunks, stages);
  return plan.finish();
}

// sum(qi - 1) alpha + (p-1)/p n beta + (p-1)/p n gamma, where n is the whole input
Cost halving_reduce_scatter_cost(const PlanRequest& request) { return halving_cost(request); }
Plan halving_reduce_scatter(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Chunks chunks{Shares::of(request)};
  const Slice result = output(0, chunks.shares.length(request.rank));
  const auto stages = stages_of(request.rank, request.size);
  if (request.size == 1) {
    plan.copy(chunks.in(0, 1), result);
    return plan.finish();
  }
  // The partial sums of the first stage's own part, and the smaller parts of later stages, lie in scratch.
  const int own_part = stages[0].part_first(stages[0].digit);
  halve(plan, request.rank, chunks, stages, [&](int chunk, int length, bool last) {
    if (last) return result;
    return scratch(chunks.shares.length(own_part, chunk - own_part), chunks.shares.length(chunk, length));
  });
  const bool sums_meet = request.size > 2;
  plan.use_scratch(sums_meet ? chunks.shares.length(own_part, stages[0].part) : 0);
  return plan.finish();
}

// stages alpha + (p-1)/p n beta + n/p gamma, where n is the whole output
Cost doubling_all_gather_cost(const PlanRequest& request) {
  return doubling_cost(request) + Cost{0, 0, 0, longest_share(request)};
}
Plan doubling_all_gather(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Chunks chunks{Shares::of(request)};
  plan.copy(input(0, chunks.shares.length(request.rank)), chunks.out(request.rank, 1));
  plan.next_round();
  double_back(plan, request.rank, chunks, stages_of(request.rank, request.size));
  return plan.finish();
}

}  // namespace stretto::plans
