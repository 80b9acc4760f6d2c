#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
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
    case Algorithm::server_set:
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

// Each of p ranks sends the servers the elements that they add up, and gets the sums back: for each of these elements 2p
// messages, 2 more than among the ranks. Each server's share is 2(p-1) / (p^2 + kp - 2k) of the vector (Jiang et al. 2020),
// or a k-th.
inline std::int64_t more_by_servers(const PlanRequest& request) {
  const std::int64_t p = request.size, k = request.servers, n = request.count;
  if (request.method.algorithm != Algorithm::server_set || k == 0) return 0;
  if (k >= p) return 2 * n;
  return 2 * std::llround(static_cast<double>(n) * static_cast<double>(2 * k * (p - 1)) /
                          static_cast<double>(p * p + k * p - 2 * k));
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

inline std::int64_t elements_sent(const PlanRequest& request, const Pairs& pairs = {});

// The lengths into which two levels cut a vector: lane l's first piece is (l + 1) / lanes of the others, rounded down at the
// end of each.
inline std::vector<std::int64_t> pieces_of(const Method& method, std::int64_t n) {
  std::vector<std::int64_t> weights;
  for (int i = 0; i < method.pieces; ++i) weights.push_back(std::min(i + 1, method.lanes));
  const std::int64_t all = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  std::vector<std::int64_t> lengths;
  std::int64_t weight = 0;
  std::int64_t begin = 0;
  for (const std::int64_t each : weights) {
    weight += each;
    const std::int64_t end = n * weight / all;
    lengths.push_back(end - begin);
    begin = end;
  }
  return lengths;
}
// Of n elements in so many balanced parts, the longer ones first.
inline std::int64_t begin_of_part(std::int64_t n, std::int64_t parts, std::int64_t i) {
  return n / parts * i + std::min(i, n % parts);
}

// Of M nodes of m ranks each, alike or not, by the stages of the hierarchy. But for a reduction that gathers at its root,
// the formulas are linear in the count, so that it does not matter how a stage's elements are cut.
inline std::int64_t levels(const PlanRequest& request) {
  const Algorithm inside = request.method.inside;
  std::vector<std::int64_t> sizes(request.node_sizes.begin(), request.node_sizes.end());
  if (sizes.empty()) sizes.assign(static_cast<std::size_t>(request.size / request.ranks_per_node), request.ranks_per_node);
  const auto nodes = static_cast<int>(sizes.size());
  const std::int64_t most = *std::max_element(sizes.begin(), sizes.end());
  const std::int64_t p = request.size;
  std::int64_t whole = request.count * (counts_shares(request.collective) ? p : 1);
  for (const std::int64_t count : request.counts) whole += count;

  PlanRequest over_nodes{request.collective, request.method.between, 0, nodes};
  if (request.method.algorithm == Algorithm::three_level) {
    over_nodes.method = Algorithm::two_level;
    over_nodes.method.inside = request.method.between;
    over_nodes.method.between = request.method.above;
    over_nodes.ranks_per_node = request.nodes_per_pod;
  }
  std::int64_t before_root = 0;  // ranks
  while (before_root + sizes[static_cast<std::size_t>(over_nodes.root)] <= request.root) {
    before_root += sizes[static_cast<std::size_t>(over_nodes.root++)];
  }
  const std::int64_t local_root = request.root - before_root;
  const auto between = [&](std::int64_t n, std::vector<std::int64_t> counts = {}) {
    over_nodes.count = n;
    over_nodes.counts = std::move(counts);
    return elements_sent(over_nodes);
  };
  // On every node, of its vector.
  const auto inside_all = [&](auto formula) {
    std::int64_t sum = 0;
    for (const std::int64_t ranks : sizes) sum += ranks > 1 ? formula(ranks) : 0;
    return sum;
  };
  const auto one_level = [&](Algorithm algorithm) {
    PlanRequest flat = request;
    flat.method = algorithm;
    return elements_sent(flat);
  };
  if (most == 1) return between(request.count, request.counts);
  Method cut = request.method;
  if (nodes == 1) cut.pieces = cut.lanes = 1;
  // A vector with a root, carried by one rank of each node.
  const auto in_whole = [&](auto formula) {
    std::int64_t sum = 0;
    for (const std::int64_t n : pieces_of(cut, whole)) {
      if (nodes > 1) sum += between(n);
      sum += inside_all([&](std::int64_t m) { return formula(inside, m, n); });
    }
    return sum;
  };
  // Or in shares, of which there are as many slices as the largest node has ranks.
  const auto in_shares = [&](auto formula) {
    const std::int64_t ranks = sizes[static_cast<std::size_t>(over_nodes.root)];
    std::int64_t sum = 0;
    for (const std::int64_t n : pieces_of(cut, whole)) {
      for (int slice = 0; nodes > 1 && slice < most; ++slice) {
        sum += between(begin_of_part(n, most, slice + 1) - begin_of_part(n, most, slice));
      }
      const auto local_begin = [&](std::int64_t local) { return begin_of_part(n, most, begin_of_part(most, ranks, local)); };
      sum += n - (local_begin(local_root + 1) - local_begin(local_root));  // to or from the root, straight
    }
    return sum + inside_all([&](std::int64_t m) { return formula(inside, m, whole); });
  };
  switch (request.collective) {
    // Each node makes one sum of its vectors, the nodes' sums become one, each node spreads it.
    case Collective::all_reduce:
      return inside_all([&](std::int64_t m) { return reduce_scatter(inside, m, whole) + all_gather(inside, m, whole); }) +
             (nodes > 1 ? between(whole) : 0);
    case Collective::reduce_scatter:
      if (nodes == 1) return one_level(inside);
      return inside_all([&](std::int64_t m) { return reduce_scatter(inside, m, whole); }) + (nodes - 1) * whole;
    case Collective::all_gather:
      if (nodes == 1) return one_level(inside);
      return inside_all([&](std::int64_t m) { return all_gather(inside, m, whole); }) + (nodes - 1) * whole;
    // Inside, a rank has for each neighbour the blocks of those whose blocks that one carries: a p-th of all for each of p.
    // Between, what its node has for them; nodes that differ send it straight.
    case Collective::all_to_all: {
      if (nodes == 1) return one_level(inside);
      std::int64_t sum = 0;
      if (request.node_sizes.empty() || most == *std::min_element(sizes.begin(), sizes.end())) {
        return inside_all([&](std::int64_t m) { return all_to_all(inside, m, nodes * request.count); }) +
               most * between(most * request.count);
      }
      for (const std::int64_t m : sizes) sum += (m - 1) * p * request.count + (p - m) * m * request.count;
      return sum;
    }
    case Collective::broadcast:
      switch (inside) {
        case Algorithm::ring:
        case Algorithm::recursive_halving_doubling:
        case Algorithm::bruck:
        case Algorithm::direct: return in_shares(all_gather);
        default: return in_whole(broadcast);
      }
    case Collective::reduce:
      switch (inside) {
        case Algorithm::ring:
        case Algorithm::recursive_halving_doubling:
        case Algorithm::pairwise:
        case Algorithm::direct: return in_shares(reduce_scatter);
        default: return in_whole([](Algorithm by, std::int64_t m, std::int64_t n) { return reduce(by, m, n); });
      }
    default: no_formula(request.collective, request.method.algorithm);
  }
}

// By all ranks of the collective that one rank's request describes. An uneven all_to_all needs all pairs.
inline std::int64_t elements_sent(const PlanRequest& request, const Pairs& pairs) {
  const Algorithm algorithm = request.method.algorithm;
  const std::int64_t p = request.size;
  if (needs_nodes(algorithm)) return levels(request);
  std::vector<std::int64_t> shares = request.counts;
  if (shares.empty()) shares.assign(static_cast<std::size_t>(p), request.count);
  const std::int64_t whole = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  switch (request.collective) {
    case Collective::all_reduce: return all_reduce(algorithm, p, request.count) + more_by_servers(request);
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

// Quantized: bytes of records by all ranks, inside nodes and between them. What is gathered goes from each rank to one of
// each other node, and there to all the others; what is summed goes the same ways backwards. Directly, everything goes from
// each to each.
struct QuantizedBytes {
  std::int64_t inside = 0, between = 0;
};
inline QuantizedBytes quantized_bytes(const PlanRequest& request) {
  std::vector<std::int64_t> nodes(request.node_sizes.begin(), request.node_sizes.end());
  if (nodes.empty() && request.ranks_per_node > 0)
    nodes.assign(request.size / request.ranks_per_node, request.ranks_per_node);
  if (nodes.empty()) nodes.assign(1, request.size);
  const auto part = [&](QuantizedFormat format) {
    QuantizedBytes sum;
    const auto p = static_cast<std::int64_t>(request.size);
    std::int64_t rank = 0;
    for (const std::int64_t on_node : nodes) {
      for (const std::int64_t end = rank + on_node; rank < end; ++rank) {
        std::int64_t share = request.count;
        if (request.collective == Collective::all_reduce) share = request.count / p + (rank < request.count % p ? 1 : 0);
        if (!request.counts.empty()) share = request.counts[static_cast<std::size_t>(rank)];
        const std::int64_t group = group_elements(format);
        const std::int64_t bytes = (share + group - 1) / group * record_bytes(format);
        if (request.method.algorithm == Algorithm::two_level) {
          for (const std::int64_t ranks : nodes) sum.inside += (ranks - 1) * bytes;
          sum.between += (static_cast<std::int64_t>(nodes.size()) - 1) * bytes;
        } else {
          sum.inside += (on_node - 1) * bytes;
          sum.between += (p - on_node) * bytes;
        }
      }
    }
    return sum;
  };
  QuantizedBytes sum = part(request.quantized);
  if (request.collective != Collective::all_reduce) return sum;
  const QuantizedBytes results = part(request.quantized_result);
  return {sum.inside + results.inside, sum.between + results.between};
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
      if (needs_nodes(algorithm)) return false;
      return request.count % request.size == 0;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all: return request.counts.empty() && request.node_sizes.empty();
    case Collective::barrier: return power_of_two(request.size);
    default: return request.size == 1;
  }
}

}  // namespace stretto::formulas
