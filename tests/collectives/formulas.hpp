#pragma once
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "stretto/plan.hpp"

// How many elements all p ranks of a group send together, or read and write in each other's memory, as closed formulas from
// the literature. They know nothing of the plans, whose sends they are held against. In sums over the ranks they are exact,
// however uneven the shares are; where all ranks send alike, each sends a p-th of it.
namespace stretto::formulas {

// What goes from one rank to another in an uneven all_to_all: pairs[from][to].
using Pairs = std::vector<std::vector<std::int64_t>>;

[[noreturn]] inline std::int64_t no_formula(Collective collective, Algorithm algorithm) {
  throw std::logic_error(std::string("There is no formula for ") + name(collective) + " by " + name(algorithm) + ".");
}

inline std::int64_t digits_not_zero(std::int64_t number, std::int64_t base) {
  std::int64_t digits = 0;
  for (; number > 0; number /= base) digits += number % base != 0 ? 1 : 0;
  return digits;
}

// A k-nomial tree brings a place's share to the root, or from there, in as many hops as the place has digits other than 0 in
// base k.
inline std::int64_t through_tree(const std::vector<std::int64_t>& share_of_place, std::int64_t radix) {
  std::int64_t sum = 0;
  for (std::size_t place = 0; place < share_of_place.size(); ++place) {
    sum += digits_not_zero(static_cast<std::int64_t>(place), radix) * share_of_place[place];
  }
  return sum;
}

// n elements. In whatever order links take their turns, everybody but one must send a contribution to an element, and
// everybody but one must be sent the sum: 2 (p-1) n is the least (Patarasuk & Yuan 2009), and most algorithms reach it.
inline std::int64_t all_reduce(Algorithm algorithm, std::int64_t p, std::int64_t n) {
  switch (algorithm) {
    case Algorithm::ring:
    case Algorithm::bidirectional_ring:
    case Algorithm::recursive_halving_doubling:
    case Algorithm::double_binary_tree:
    case Algorithm::two_shot:
    case Algorithm::staged:
    case Algorithm::pull:
    case Algorithm::push: return 2 * (p - 1) * n;
    case Algorithm::one_shot:
    case Algorithm::packet: return p * (p - 1) * n;
    case Algorithm::recursive_doubling: {
      // Whole vectors: log2 m times by the ranks of the largest power of two m, to and fro by the others (Thakur 2005).
      const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(p)));
      const std::int64_t doublings = std::bit_width(static_cast<std::uint64_t>(power)) - 1;
      return (power * doublings + 2 * (p - power)) * n;
    }
    default: no_formula(Collective::all_reduce, algorithm);
  }
}

// n: the whole input. All but one contribution to every element must be sent, and no algorithm here sends more.
inline std::int64_t reduce_scatter(Algorithm algorithm, std::int64_t p, std::int64_t n) {
  switch (algorithm) {
    case Algorithm::ring:
    case Algorithm::bidirectional_ring:
    case Algorithm::recursive_halving_doubling:
    case Algorithm::pairwise:
    case Algorithm::direct:
    case Algorithm::packet:
    case Algorithm::staged:
    case Algorithm::pull: return (p - 1) * n;
    default: no_formula(Collective::reduce_scatter, algorithm);
  }
}

// n: the whole output, which everybody but its owner must be sent.
inline std::int64_t all_gather(Algorithm algorithm, std::int64_t p, std::int64_t n) {
  switch (algorithm) {
    case Algorithm::ring:
    case Algorithm::bidirectional_ring:
    case Algorithm::recursive_halving_doubling:
    case Algorithm::bruck:
    case Algorithm::direct:
    case Algorithm::packet:
    case Algorithm::staged:
    case Algorithm::pull: return (p - 1) * n;
    default: no_formula(Collective::all_gather, algorithm);
  }
}

inline std::int64_t all_to_all(Algorithm algorithm, std::int64_t p, std::int64_t block) {
  switch (algorithm) {
    case Algorithm::pairwise:
    case Algorithm::direct:
    case Algorithm::packet:
    case Algorithm::staged:
    case Algorithm::pull: return p * (p - 1) * block;
    // The block that has j places to go makes a hop for each 1 in the binary j (Bruck et al. 1997).
    case Algorithm::bruck: return p * through_tree(std::vector<std::int64_t>(static_cast<std::size_t>(p), block), 2);
    default: no_formula(Collective::all_to_all, algorithm);
  }
}

// All but what a rank has for itself.
inline std::int64_t all_to_all(Algorithm algorithm, const Pairs& pairs) {
  if (algorithm != Algorithm::pairwise && algorithm != Algorithm::direct) no_formula(Collective::all_to_all, algorithm);
  std::int64_t sum = 0;
  for (std::size_t from = 0; from < pairs.size(); ++from) {
    sum += std::accumulate(pairs[from].begin(), pairs[from].end(), std::int64_t{0}) - pairs[from][from];
  }
  return sum;
}

// n elements, which everybody but the root must be sent once.
inline std::int64_t broadcast(Algorithm algorithm, std::int64_t p, std::int64_t n) {
  switch (algorithm) {
    case Algorithm::binomial:
    case Algorithm::knomial:
    case Algorithm::double_binary_tree:
    case Algorithm::chain:
    case Algorithm::scatter_all_gather:  // shares that a rank passed on in the tree are not brought to it again
    case Algorithm::direct:
    case Algorithm::packet:
    case Algorithm::staged:
    case Algorithm::pull:
    case Algorithm::push: return (p - 1) * n;
    default: no_formula(Collective::broadcast, algorithm);
  }
}

inline std::int64_t reduce(Algorithm algorithm, std::int64_t p, std::int64_t n, std::int64_t root = 0) {
  switch (algorithm) {
    case Algorithm::binomial:
    case Algorithm::knomial:
    case Algorithm::double_binary_tree:
    case Algorithm::chain:
    case Algorithm::direct:
    case Algorithm::packet: return (p - 1) * n;
    // Every rank sums a part; the root's lies there already.
    case Algorithm::staged:
    case Algorithm::pull:
    case Algorithm::push: return (p - 1) * n + n - (n / p + (root < n % p ? 1 : 0));
    case Algorithm::reduce_scatter_gather: {  // (Rabenseifner 2004); the first places have one element more
      std::vector<std::int64_t> shares;
      for (std::int64_t place = 0; place < p; ++place) shares.push_back(n / p + (place < n % p ? 1 : 0));
      return reduce_scatter(Algorithm::recursive_halving_doubling, p, n) + through_tree(shares, 2);
    }
    default: no_formula(Collective::reduce, algorithm);
  }
}

// The share of each place, the root's first.
inline std::int64_t gather_or_scatter(Collective collective, Algorithm algorithm,
                                      const std::vector<std::int64_t>& share_of_place) {
  switch (algorithm) {
    case Algorithm::binomial: return through_tree(share_of_place, 2);
    case Algorithm::knomial: return through_tree(share_of_place, 4);
    case Algorithm::direct:
    case Algorithm::packet:
    case Algorithm::staged:
    case Algorithm::pull: return std::accumulate(share_of_place.begin() + 1, share_of_place.end(), std::int64_t{0});
    default: no_formula(collective, algorithm);
  }
}

// Of m ranks a node and M nodes, by the stages of the hierarchy. All formulas here are linear in the count, so that it does
// not matter how a stage's elements are cut.
inline std::int64_t two_level(const PlanRequest& request) {
  const Algorithm inside = request.method.inside;
  const Algorithm between = request.method.between;
  const std::int64_t ranks = request.ranks_per_node;
  const std::int64_t nodes = request.size / ranks;
  const std::int64_t count = request.count;
  const std::int64_t whole = count * (counts_shares(request.collective) ? request.size : 1);
  switch (request.collective) {
    // Each node makes one sum of its vectors, the nodes' sums become one, each node spreads it.
    case Collective::all_reduce:
      return (ranks > 1 ? nodes * (reduce_scatter(inside, ranks, whole) + all_gather(inside, ranks, whole)) : 0) +
             (nodes > 1 ? all_reduce(between, nodes, whole) : 0);
    case Collective::reduce_scatter:
      return (ranks > 1 ? nodes * reduce_scatter(inside, ranks, whole) : 0) +
             (nodes > 1 ? reduce_scatter(between, nodes, whole) : 0);
    case Collective::all_gather:
      return (nodes > 1 ? all_gather(between, nodes, whole) : 0) +
             (ranks > 1 ? nodes * all_gather(inside, ranks, whole) : 0);
    // Inside, a rank has for each neighbour what goes to that one's place on all nodes; between, what its node has for it.
    case Collective::all_to_all:
      return (ranks > 1 ? nodes * all_to_all(inside, ranks, nodes * count) : 0) +
             (nodes > 1 ? ranks * all_to_all(between, nodes, ranks * count) : 0);
    case Collective::broadcast:
      return (nodes > 1 ? broadcast(between, nodes, whole) : 0) + (ranks > 1 ? nodes * broadcast(inside, ranks, whole) : 0);
    case Collective::reduce:
      return (ranks > 1 ? nodes * reduce(inside, ranks, whole) : 0) + (nodes > 1 ? reduce(between, nodes, whole) : 0);
    default: no_formula(request.collective, Algorithm::two_level);
  }
}

// By all ranks of the collective that one rank's request describes. An uneven all_to_all needs all pairs.
inline std::int64_t elements_sent(const PlanRequest& request, const Pairs& pairs = {}) {
  const Algorithm algorithm = request.method.algorithm;
  const std::int64_t p = request.size;
  if (algorithm == Algorithm::two_level) return two_level(request);
  std::vector<std::int64_t> shares = request.counts;
  if (shares.empty()) shares.assign(static_cast<std::size_t>(p), request.count);
  const std::int64_t whole = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  switch (request.collective) {
    case Collective::all_reduce: return all_reduce(algorithm, p, request.count);
    case Collective::reduce_scatter: return reduce_scatter(algorithm, p, whole);
    case Collective::all_gather: return all_gather(algorithm, p, whole);
    case Collective::all_to_all:
      return request.counts.empty() ? all_to_all(algorithm, p, request.count) : all_to_all(algorithm, pairs);
    case Collective::broadcast: return broadcast(algorithm, p, request.count);
    case Collective::reduce: return reduce(algorithm, p, request.count, request.root);
    case Collective::gather:
    case Collective::scatter: {
      std::vector<std::int64_t> share_of_place;
      for (int place = 0; place < request.size; ++place) {
        share_of_place.push_back(shares[static_cast<std::size_t>((place + request.root) % request.size)]);
      }
      return gather_or_scatter(request.collective, algorithm, share_of_place);
    }
    case Collective::barrier: return all_reduce(algorithm, p, 1);
    case Collective::send: return request.count;  // by the one rank
    case Collective::recv: return 0;
  }
  no_formula(request.collective, algorithm);
}

// Whether every rank sends as much as every other.
inline bool all_send_alike(const PlanRequest& request) {
  const auto power_of_two = [](int ranks) { return std::has_single_bit(static_cast<unsigned>(ranks)); };
  const Algorithm algorithm = request.method.algorithm;
  switch (request.collective) {
    case Collective::all_reduce:
      if (algorithm == Algorithm::one_shot || algorithm == Algorithm::packet) return true;
      if (algorithm == Algorithm::recursive_doubling) return power_of_two(request.size);
      if (algorithm == Algorithm::double_binary_tree) return false;
      if (algorithm == Algorithm::two_level && request.method.between == Algorithm::recursive_doubling &&
          !power_of_two(request.size / request.ranks_per_node)) {
        return false;
      }
      return request.count % request.size == 0;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all: return request.counts.empty();
    case Collective::barrier: return power_of_two(request.size);
    default: return request.size == 1;
  }
}

}  // namespace stretto::formulas
