#include "stretto/planning/proof.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "collectives/proof/root_proofs.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

bool can_be_planned(PlanRequest request) {
  request.count = 4;
  try {
    make_plan(request);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

// The pairs of algorithms that two levels accept for a collective, on nodes of equal size or not. Pairs that make_plan()
// refuses need no proof.
std::vector<Method> find_pairs(Collective collective, bool alike) {
  std::vector<Method> methods;
  PlanRequest request{.collective = collective, .size = 4, .ranks_per_node = 2};
  if (!alike) {
    request.ranks_per_node = 0;
    request.node_sizes = {3, 1};
  }
  for (int inside = 1; inside < static_cast<int>(Algorithm::two_level); ++inside) {
    for (const Algorithm between : algorithms_for(collective)) {
      request.method = Algorithm::two_level;
      request.method.inside = static_cast<Algorithm>(inside);
      request.method.between = between;
      if (can_be_planned(request)) methods.push_back(request.method);
    }
  }
  ensure(!methods.empty(), "{} can be done by two_level, but not by any two algorithms.", name(collective));
  return methods;
}

// The pairs of find_pairs(), found once for all sizes.
const std::vector<Method>& pairs_of(Collective collective, bool alike) {
  static const auto table = [] {
    std::map<std::pair<Collective, bool>, std::vector<Method>> pairs;
    for (int i = 0; i < static_cast<int>(Collective::send); ++i) {
      const auto each = static_cast<Collective>(i);
      if (!can_do(each, Algorithm::two_level)) continue;
      for (const bool equal : {false, true}) pairs[{each, equal}] = find_pairs(each, equal);
    }
    return pairs;
  }();
  return table.at({collective, alike});
}

// Each method of three levels takes the inner algorithm of one pair and both algorithms of another.
std::vector<Method> methods_of_levels(Collective collective, Algorithm algorithm, bool alike) {
  std::vector<Method> methods = pairs_of(collective, alike);
  if (algorithm == Algorithm::three_level) {
    const std::vector<Method> pairs = methods;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Method& upper = pairs[(i + pairs.size() / 2) % pairs.size()];
      methods[i].algorithm = algorithm;
      methods[i].between = upper.inside;
      methods[i].above = upper.between;
    }
  }
  return methods;
}

// The algorithm without lanes or pieces, and with the least of each. In small groups also with the numbers that the library
// may choose.
std::vector<Method> methods_of(Algorithm algorithm, int size) {
  Method method(algorithm);
  std::vector<Method> methods{method};
  const bool small = size <= most_ranks_with_every_parameter;
  if (takes_lanes(algorithm)) {
    method.lanes = 2;
    methods.push_back(method);
    method.lanes = 4;
    // A bidirectional ring has two lanes, one in each direction, for every lane of the method.
    if (small && algorithm != Algorithm::bidirectional_ring) methods.push_back(method);
    method.lanes = 1;
  }
  if (takes_pieces(algorithm)) {
    for (const int pieces : small ? std::vector{3, 16, 64} : std::vector{3}) {
      method.pieces = pieces;
      methods.push_back(method);
    }
  }
  return methods;
}

std::vector<int> divisors_of(int size) {
  std::vector<int> divisors;
  for (int ranks = 1; ranks <= size; ++ranks) {
    if (size % ranks == 0) divisors.push_back(ranks);
  }
  if (size <= most_ranks_with_every_case) return divisors;
  return {*(std::upper_bound(divisors.begin(), divisors.end(), 8) - 1)};
}

std::vector<std::int64_t> counts_of(const PlanRequest& request) {
  const std::int64_t size = request.size;
  if (request.collective == Collective::barrier) return {1};
  if (size <= most_ranks_with_every_case) {
    if (counts_shares(request.collective)) return {0, 1, 3};
    std::vector<std::int64_t> counts{0, 1, 2 * size, 2 * size + 1};
    if (size > 2) counts.push_back(size - 1);
    if (request.method.pieces > 2 * size + 1) counts.push_back(2 * request.method.pieces + 1);
    return counts;
  }
  // For an all-reduce, also nearly one element for each rank, unless every rank needs every vector.
  const Algorithm algorithm = request.method.algorithm;
  const bool needs_all = algorithm == Algorithm::one_shot || algorithm == Algorithm::packet;
  if (request.collective != Collective::all_reduce || needs_all) return {1};
  return {1, size - 1};
}

// Some algorithms pass blocks of one size on through other ranks, or find them in other ranks' memory. These refuse uneven
// shares.
bool takes_uneven(Collective collective, Algorithm algorithm) {
  return counts_shares(collective) && (collective != Collective::all_to_all || takes_uneven_exchange(algorithm));
}

// None, fewer than other ranks, as many, and more. In other algorithms servers do nothing; small groups prove that.
std::vector<int> servers_of(Collective collective, Algorithm algorithm, int size) {
  if (collective != Collective::all_reduce || shares_memory(algorithm)) return {0};
  if (!uses_servers(algorithm)) return size == 3 ? std::vector{0, 2} : std::vector{0};
  std::set<int> servers{0, 1, size / 2, size};
  if (size <= most_ranks_with_every_parameter) servers.insert({2, size - 1, size + 1});
  return {servers.begin(), servers.end()};
}

// The requests with which an algorithm is proved at a size, with various methods and nodes; without root and counts.
std::vector<PlanRequest> settings_of(Collective collective, Algorithm algorithm, int size) {
  PlanRequest request{.collective = collective, .method = algorithm, .size = size};
  std::vector<PlanRequest> settings;
  if (!needs_nodes(algorithm)) {
    for (const Method& method : methods_of(algorithm, size)) {
      request.method = method;
      for (const int servers : servers_of(collective, algorithm, size)) {
        request.servers = servers;
        settings.push_back(request);
      }
    }
    return settings;
  }
  // Adds one method, with one choice of lanes and pieces. All calls, over all sizes, take all of them.
  const auto add = [&](const std::vector<Method>& methods) {
    static constexpr std::array<std::array<int, 2>, 4> cuts{{{1, 1}, {1, 3}, {2, 4}, {3, 5}}};  // lanes, pieces
    const std::size_t turn = size + settings.size();
    request.method = methods[turn % methods.size()];
    request.method.lanes = cuts[turn % cuts.size()][0];
    request.method.pieces = cuts[turn % cuts.size()][1];
    settings.push_back(request);
  };
  const std::vector<Method> methods = methods_of_levels(collective, algorithm, true);
  for (const int ranks : divisors_of(size)) {
    request.ranks_per_node = ranks;
    const std::vector<int> pods = divisors_of(size / ranks);
    request.nodes_per_pod = algorithm == Algorithm::three_level ? pods[pods.size() / 2] : 0;
    add(methods);
  }
  const bool blocks_need_direct = algorithm == Algorithm::three_level && counts_shares(collective);
  if (size < 3 || blocks_need_direct) return settings;
  request.ranks_per_node = 0;
  for (int left = size; left > 0; left -= request.node_sizes.back()) {
    request.node_sizes.push_back(std::min(left, 1 + (size + 3 * static_cast<int>(request.node_sizes.size())) % 8));
  }
  const std::vector<int> pods = divisors_of(static_cast<int>(request.node_sizes.size()));
  request.nodes_per_pod = algorithm == Algorithm::three_level ? pods[pods.size() / 2] : 0;
  add(methods_of_levels(collective, algorithm, false));
  return settings;
}

}  // namespace

PlanRequest request_of(const ProofCase& which, int rank) {
  PlanRequest request = which.request;
  request.rank = rank;
  if (!which.uneven) return request;
  const auto share = [&](int from, int to) { return which.request.count * ((from + 2 * to + 1) % 3); };
  request.count = 0;
  for (int peer = 0; peer < request.size; ++peer) {
    if (request.collective == Collective::all_to_all) {
      request.counts.push_back(share(rank, peer));
      request.receive_counts.push_back(share(peer, rank));
    } else {
      request.counts.push_back(share(peer, 0));
    }
  }
  return request;
}

std::vector<Plan> plans_of(const ProofCase& which, plans::PartPlans& parts) {
  std::vector<Plan> plans;
  plans.reserve(ranks_of(which.request));
  for (int rank = 0; rank < ranks_of(which.request); ++rank) plans.push_back(make_plan(request_of(which, rank), parts));
  return plans;
}
std::vector<Plan> plans_of(const ProofCase& which) {
  plans::PartPlans parts;
  return plans_of(which, parts);
}

std::string to_string(const ProofCase& which) {
  const PlanRequest& request = which.request;
  std::string text = fmt::format("{} by {}, {} ranks", name(request.collective), to_string(request.method), request.size);
  if (request.servers > 0) text += fmt::format(" and {} servers", request.servers);
  if (request.quantized != QuantizedFormat::none) text += fmt::format(" in {}", name(request.quantized));
  if (request.ranks_per_node > 0) text += fmt::format(" with {} per node", request.ranks_per_node);
  if (!request.node_sizes.empty()) text += fmt::format(" on nodes of {}", fmt::join(request.node_sizes, ", "));
  if (request.nodes_per_pod > 0) text += fmt::format(", {} of them a pod", request.nodes_per_pod);
  text += which.uneven ? fmt::format(", uneven shares of 0 to {} elements", 2 * request.count)
                       : fmt::format(", {} elements", request.count);
  if (has_root(request.collective)) text += fmt::format(", root {}", request.root);
  return text;
}

std::vector<ProofCase> proof_cases(Collective collective, Algorithm algorithm, int size) {
  std::vector<ProofCase> cases;
  for (PlanRequest& request : settings_of(collective, algorithm, size)) {
    const bool every_root = has_root(collective) && size <= most_ranks_with_every_case;
    const int first = has_root(collective) && !every_root ? size / 3 : 0;
    const int last = every_root ? size - 1 : first;
    // All roots of a call follow each other.
    const auto add = [&](std::int64_t count, bool uneven) {
      request.count = count;
      for (request.root = first; request.root <= last; ++request.root) cases.push_back({request, uneven});
    };
    for (const std::int64_t count : counts_of(request)) add(count, false);
    if (takes_uneven(collective, algorithm)) add(1, true);
  }
  return cases;
}

}  // namespace stretto
