// Recursive doubling: in round k every rank exchanges its whole sum with the rank whose number differs in bit k. The fewest
// messages, all of n bytes: for small vectors. Both partners add the same two sums, so that all ranks hold the same bits.
// Ranks beyond the largest power of two m fold: each gives its vector to a partner first and gets the result last.
#include <bit>

#include "collectives/plans/generators.hpp"

namespace stretto::plans {

// (log2 m + 2f) (alpha + n beta) + (log2 m + f) n gamma, where f = 1 if ranks fold, else 0; and n gamma for a copy if they
// do not fold and log2 p is odd
Cost recursive_doubling_all_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  const int doublings = std::bit_width(static_cast<unsigned>(request.size)) - 1;
  const int folds = std::has_single_bit(static_cast<unsigned>(request.size)) ? 0 : 1;
  const int copies = request.size == 1 || (folds == 0 && doublings % 2 != 0) ? 1 : 0;
  const double messages = doublings + 2 * folds;
  return {messages, messages, messages * n, (doublings + folds + copies) * n};
}
Plan recursive_doubling_all_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const int rank = request.rank;
  const std::int64_t n = request.count;
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(request.size)));
  const int folded = request.size - power;  // the even ones among the first 2 * folded ranks do not take part
  const bool paired = rank < 2 * folded;
  if (request.size == 1) {
    plan.copy(input(0, n), output(0, n));
    return plan.finish();
  }
  if (paired && rank % 2 == 0) {
    plan.send(rank + 1, input(0, n));
    plan.next_round();
    plan.recv(rank + 1, output(0, n));
    return plan.finish();
  }

  // A sum is sent from its place while the next one forms elsewhere: output and scratch alternate, so that the last sum is
  // in the output. The input counts as output here, since in place they are the same memory.
  const int exchanges = std::countr_zero(static_cast<unsigned>(power));
  const Slice start = exchanges % 2 == 0 ? output(0, n) : scratch(0, n);
  Slice sum = input(0, n);
  if (paired) {
    plan.recv_reduce(rank - 1, sum, start, false);
    sum = start;
  } else if (start.buffer == Buffer::scratch) {
    plan.copy(sum, start);
    sum = start;
  }
  plan.next_round();

  const int seat = paired ? rank / 2 : rank - folded;
  for (int bit = 1; bit < power; bit *= 2) {
    const int other = seat ^ bit;
    const int peer = other < folded ? 2 * other + 1 : other + folded;
    const Slice place = sum.buffer == Buffer::scratch ? output(0, n) : scratch(0, n);
    plan.send(peer, sum);
    plan.recv_reduce(peer, sum, place, 2 * bit == power);
    plan.next_round();
    sum = place;
  }
  if (paired) plan.send(rank - 1, sum);
  plan.use_scratch(n);
  return plan.finish();
}

}  // namespace stretto::plans
