#include "stretto/proof.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Pairs of algorithms that two_level takes for a collective; what it refuses is no case to prove.
std::vector<Method> two_level_methods(Collective collective) {
  std::vector<Method> methods;
  const auto last = static_cast<int>(Algorithm::two_level);
  for (int inside = 0; inside < last; ++inside) {
    for (int between = 0; between < last; ++between) {
      Method method(Algorithm::two_level);
      method.inside = static_cast<Algorithm>(inside);
      method.between = static_cast<Algorithm>(between);
      try {
        make_plan({.collective = collective, .method = method, .size = 4, .count = 4, .ranks_per_node = 2});
        methods.push_back(method);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_argument) throw;
      }
    }
  }
  ensure(!methods.empty(), "{} can be done by two_level, but not by any two algorithms.", name(collective));
  return methods;
}

// Beside the least parameters that are none, in small groups also those that the library may choose.
std::vector<Method> methods_of(Algorithm algorithm, int size) {
  Method method(algorithm);
  std::vector<Method> methods{method};
  const bool small = size <= most_ranks_with_every_parameter;
  if (takes_lanes(algorithm)) {
    method.lanes = 2;
    methods.push_back(method);
    method.lanes = 4;
    if (small && algorithm != Algorithm::bidirectional_ring) methods.push_back(method);  // which has both ways in each
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

std::vector<int> node_sizes(int size) {
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
  // An all-reduce of nearly an element a rank, unless every rank needs every vector.
  const Algorithm algorithm = request.method.algorithm;
  const bool needs_all = algorithm == Algorithm::one_shot || algorithm == Algorithm::packet;
  if (request.collective != Collective::all_reduce || needs_all) return {1};
  return {1, size - 1};
}

// Some send blocks of one size on through other ranks, or look for them in other ranks' memory, and refuse uneven shares.
bool takes_uneven(Collective collective, Algorithm algorithm) {
  if (algorithm == Algorithm::two_level || (collective == Collective::all_to_all && !takes_uneven_exchange(algorithm)))
    return false;
  return counts_shares(collective);
}

// What a method runs on: the request of a case with everything but root and counts.
std::vector<PlanRequest> settings_of(Collective collective, Algorithm algorithm, int size) {
  PlanRequest request{.collective = collective, .method = algorithm, .size = size};
  std::vector<PlanRequest> settings;
  if (algorithm != Algorithm::two_level) {
    for (const Method& method : methods_of(algorithm, size)) {
      request.method = method;
      settings.push_back(request);
    }
    return settings;
  }
  const std::vector<Method> methods = two_level_methods(collective);
  for (const int ranks : node_sizes(size)) {
    // Few at each size, all of them over the sizes.
    request.method = methods[(size + settings.size()) % methods.size()];
    request.ranks_per_node = ranks;
    settings.push_back(request);
  }
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

std::vector<Plan> plans_of(const ProofCase& which) {
  std::vector<Plan> plans;
  plans.reserve(which.request.size);
  for (int rank = 0; rank < which.request.size; ++rank) plans.push_back(make_plan(request_of(which, rank)));
  return plans;
}

std::string to_string(const ProofCase& which) {
  const PlanRequest& request = which.request;
  std::string text = fmt::format("{} by {}, {} ranks", name(request.collective), to_string(request.method), request.size);
  if (request.quantized != QuantizedFormat::none) text += fmt::format(" in {}", name(request.quantized));
  if (!request.node_sizes.empty()) text += fmt::format(" on nodes of {}", fmt::join(request.node_sizes, ", "));
  if (request.ranks_per_node > 0) text += fmt::format(" with {} per node", request.ranks_per_node);
  text += which.uneven ? fmt::format(", uneven shares of 0 to {} elements", 2 * request.count)
                       : fmt::format(", {} elements", request.count);
  if (has_root(request.collective)) text += fmt::format(", root {}", request.root);
  return text;
}

std::vector<ProofCase> proof_cases(Collective collective, Algorithm algorithm, int size) {
  std::vector<ProofCase> cases;
  for (PlanRequest request : settings_of(collective, algorithm, size)) {
    const bool every_root = has_root(collective) && size <= most_ranks_with_every_case;
    const int first = has_root(collective) && !every_root ? size / 3 : 0;
    const int last = every_root ? size - 1 : first;
    for (request.root = first; request.root <= last; ++request.root) {
      for (const std::int64_t count : counts_of(request)) {
        request.count = count;
        cases.push_back({request, false});
      }
      request.count = 1;
      if (takes_uneven(collective, algorithm)) cases.push_back({request, true});
    }
  }
  return cases;
}

std::optional<std::string> prove(const ProofCase& which) {
  const Collective collective = which.request.collective;
  const std::vector<Plan> plans = plans_of(which);
  // The library runs barriers in place, too.
  const bool also_in_place = can_be_in_place(collective) || collective == Collective::barrier;
  for (int in_place = 0; in_place <= (also_in_place ? 1 : 0); ++in_place) {
    if (const auto fault = verify(plans, in_place == 1)) {
      return fmt::format("{}, {}: {}", to_string(which), in_place == 1 ? "in place" : "out of place", *fault);
    }
  }
  return std::nullopt;
}

}  // namespace stretto
