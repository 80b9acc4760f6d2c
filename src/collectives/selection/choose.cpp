// The choice of an algorithm: by the caller, otherwise by a rule, otherwise the fastest by the cost model.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "collectives/plan/plan_builder.hpp"
#include "collectives/selection/choose_costs.hpp"
#include "core/fail.hpp"
#include "stretto/planning/tuning.hpp"

namespace stretto {

DType wire_of(Collective collective, Algorithm algorithm, DType dtype, ReduceOp op) {
  if (!has_steps(algorithm)) return dtype;
  if (!reduces(collective) || !is_narrow(dtype) || op == ReduceOp::min || op == ReduceOp::max) return dtype;
  return rounds_once(algorithm) && op != ReduceOp::premul_sum ? dtype : DType::f32;
}

namespace {

bool sums_in_order(const PlanRequest& request, DType dtype, ReduceOp op) {
  const bool exact = !reduces(request.collective) || op == ReduceOp::min || op == ReduceOp::max ||
                     (!is_narrow(dtype) && dtype != DType::f32 && dtype != DType::f64);
  return exact || is_deterministic(request.method.algorithm);
}

// Bytes of the whole vector, as rules count them.
std::int64_t bytes_of(const PlanRequest& request, DType dtype) {
  return Shares::of(request).total() * static_cast<std::int64_t>(size_of(dtype));
}

// The reason why these ranks cannot use the request's method; empty if they can. Reasons that depend on a call's buffers are
// found only when the buffers are known.
std::string obstacle(const PlanRequest& request, DType dtype, ReduceOp op, const Circumstances& circumstances) {
  const Algorithm algorithm = request.method.algorithm;
  if (!has_steps(algorithm) && !circumstances.on_gpus) return "its buffers do not lie on GPUs";
  if (!has_steps(algorithm) && !circumstances.done_whole) return "it does not do this call between these ranks";
  if (!shares_memory(algorithm)) return "";
  if (request.servers > 0) return "all ranks that share memory need vectors, and servers have none";
  if (circumstances.on_gpus) return "its buffers lie on GPUs, whose memory no plan shares";
  if (!circumstances.shares_memory) return "its ranks do not all reach each other's memory";
  if (algorithm != Algorithm::packet) return "";
  const DType wire = wire_of(request.collective, algorithm, dtype, op);
  const std::int64_t bytes = packet_elements(request) * static_cast<std::int64_t>(size_of(wire));
  if (bytes <= most_packet_bytes) return "";
  return fmt::format("a packet holds {} bytes and would need {}", most_packet_bytes, bytes);
}

// Whether the method can be used with the memory of these ranks.
bool suits(const PlanRequest& request, const Circumstances& circumstances) {
  const Algorithm algorithm = request.method.algorithm;
  if (circumstances.on_gpus && shares_memory(algorithm)) return false;
  if (request.collective == Collective::all_to_all && !request.counts.empty() && shares_memory(algorithm)) return false;
  if (circumstances.several_nodes && shares_memory(algorithm)) return false;
  if (circumstances.symmetric || !touches_buffers(algorithm)) return true;
  return algorithm == Algorithm::pull && circumstances.reads_memory;
}

// So many that a message between a rank and a server has at most 60 KiB. From 64 KiB on, UCX asks the receiver before it
// sends. In an exchange of all with all over TCP, one link then waits for another: over four ranks and four servers at 1
// Gb/s 16 MiB take 146 ms in messages of 58 KiB, and 1,250 ms in messages of 64 KiB.
int pieces_for_servers(const PlanRequest& request, DType dtype, ReduceOp op) {
  constexpr double most_bytes = 60 << 10;
  constexpr double most = 4096;
  PlanRequest in_one_piece = request;
  in_one_piece.method = Algorithm::server_set;
  in_one_piece.rank = request.size;
  const auto width = static_cast<double>(size_of(wire_of(request.collective, Algorithm::server_set, dtype, op)));
  const double sent = static_cast<double>(make_plan(in_one_piece).elements_sent()) * width / request.size;
  const double pieces = std::max(1.0, std::ceil(sent / 2 / most_bytes));
  return pieces > most ? 0 : static_cast<int>(pieces);
}

// Every method of one level that the cost model may take for a collective.
std::vector<Method> methods_for(const PlanRequest& request, DType dtype, ReduceOp op, bool servers_apart) {
  std::vector<Method> methods;
  const auto with = [&](Algorithm algorithm, int lanes, int pieces) {
    Method method(algorithm);
    method.lanes = lanes;
    method.pieces = pieces;
    methods.push_back(method);
  };
  for (const Algorithm algorithm : algorithms_for(request.collective)) {
    switch (algorithm) {
      case Algorithm::ring:
        for (int lanes = 1; lanes <= most_lanes; lanes *= 2) with(algorithm, lanes, 1);
        break;
      case Algorithm::bidirectional_ring: break;  // pays only on wires that no measured route has; must be requested
      case Algorithm::server_set:
        if (request.servers > 0 && servers_apart) {
          if (const int pieces = pieces_for_servers(request, dtype, op); pieces > 0) with(algorithm, 1, pieces);
        }
        break;
      case Algorithm::chain:
      case Algorithm::double_binary_tree:
        for (int pieces = 1; pieces <= most_pieces; pieces *= pieces_factor) with(algorithm, 1, pieces);
        break;
      case Algorithm::bruck:  // all_to_all: even shares only
        if (request.collective != Collective::all_to_all || request.counts.empty()) with(algorithm, 1, 1);
        break;
      case Algorithm::two_level:
      case Algorithm::three_level: break;  // see pairs_for() and refinements_of()
      default: with(algorithm, 1, 1);
    }
  }
  return methods;
}

// Every pair of algorithms for two_level, in one piece, if nodes have ranks to share the work.
std::vector<Method> pairs_for(const PlanRequest& request, bool several_nodes) {
  std::vector<Method> methods;
  if (!several_nodes || (request.ranks_per_node <= 1 && request.node_sizes.empty())) return methods;
  Method method(Algorithm::two_level);
  if (!can_do(request.collective, Algorithm::two_level)) return methods;
  for (int inside = 1; inside < static_cast<int>(Algorithm::two_level); ++inside) {
    for (const Algorithm between : algorithms_for(request.collective)) {
      if (between >= Algorithm::two_level) break;  // algorithms that share memory come later, and are not possible either
      method.inside = static_cast<Algorithm>(inside);
      method.between = between;
      methods.push_back(method);
    }
  }
  return methods;
}

// The method with rings between nodes, if possible: each node then always sends to one node and receives from one. Otherwise
// several lanes, which are out of step, would use a node's port at the same time.
Method with_fixed_neighbours(const Method& method, PlanRequest request) {
  request.method = method;
  request.method.between = Algorithm::ring;
  if (method.algorithm == Algorithm::three_level) request.method.above = Algorithm::ring;
  return can_be_done(request) ? request.method : method;
}

// Methods to consider if some pairs are the best: the pairs in lanes of pieces and, with pods, with a third level. All
// combinations would be thousands.
std::vector<Method> refinements_of(const std::vector<Method>& pairs, const PlanRequest& request) {
  std::vector<Method> whole = pairs;
  if (request.nodes_per_pod > 1) {
    for (Method method : pairs) {
      method.algorithm = Algorithm::three_level;
      for (const Algorithm above : algorithms_for(request.collective)) {
        if (above >= Algorithm::two_level) break;
        method.above = above;
        whole.push_back(method);
      }
    }
  }
  std::set<Method> methods(whole.begin() + static_cast<std::ptrdiff_t>(pairs.size()), whole.end());
  for (const Method& one : whole) {
    Method method = with_fixed_neighbours(one, request);
    for (method.lanes = 2; method.lanes <= most_lanes; method.lanes *= 2) {
      for (method.pieces = 4; method.pieces <= 16; method.pieces *= 2) methods.insert(method);
    }
  }
  return {methods.begin(), methods.end()};
}

// The model does not know delays, which more lanes and pieces tolerate. If its predictions for methods in levels differ by
// less than its accuracy, the method with the most lanes wins, then the one with the most pieces.
const Candidate& best_of(const std::vector<Candidate>& best_first) {
  constexpr double alike = 1.002;
  const Candidate* best = &best_first.front();
  if (!needs_nodes(best->method.algorithm)) return *best;
  for (const Candidate& other : best_first) {
    if (other.seconds > alike * best_first.front().seconds) break;
    const auto levels = [](const Method& method) { return std::tuple(method.algorithm, method.between, method.above); };
    const auto in_flight = [](const Method& method) { return std::pair(method.lanes, method.pieces); };
    if (levels(other.method) == levels(best->method) && in_flight(other.method) > in_flight(best->method)) best = &other;
  }
  return *best;
}

Choice decided(const PlanRequest& request, DType dtype, ReduceOp op, bool deterministic, const std::string& by,
               const std::string& obstacle) {
  const Algorithm algorithm = request.method.algorithm;
  require(obstacle.empty(), "{} was asked for by {}, but {}.", to_string(request.method), by, obstacle);
  require(!deterministic || sums_in_order(request, dtype, op),
          "{} was asked for by {}, but its order of summation depends on the size; with STRETTO_DETERMINISTIC=1 choose "
          "one_shot, two_shot, server_set, direct, packet, staged, pull or push.",
          to_string(request.method), by);
  return {request.method,
          wire_of(request.collective, algorithm, dtype, op),
          fmt::format("{}, by {}", to_string(request.method), by),
          {}};
}

}  // namespace

double whole_collective_seconds(const PlanRequest& request, const LinkCost& link, DType dtype) {
  const double shares = static_cast<double>(Shares::of(request).total()) * (request.size - 1) / request.size;
  const double sent = request.collective == Collective::all_reduce ? 2 * shares : shares;
  return 2 * link.alpha + sent * static_cast<double>(size_of(dtype)) * link.beta;
}

Choice choose(const PlanRequest& request, DType dtype, ReduceOp op, const Tuning& tuning, const Circumstances& circumstances,
              bool may_be_plain) {
  check_shape(request);
  if (request.quantized != QuantizedFormat::none) {
    return choose_quantized(request, dtype, op, tuning, circumstances, may_be_plain);
  }
  PlanRequest trial = request;
  const auto obstacle_of = [&](const PlanRequest& to) { return obstacle(to, dtype, op, circumstances); };
  if (request.method.algorithm != Algorithm::automatic) {
    return decided(request, dtype, op, tuning.deterministic, "the caller", obstacle_of(request));
  }
  // In uneven all_to_all no rank knows all counts, so that only the number of ranks may decide.
  const bool unknown_size = request.collective == Collective::all_to_all && !request.counts.empty();
  const std::int64_t bytes = unknown_size ? 0 : bytes_of(request, dtype);
  const auto fits = [&](const Rule& rule) {
    if (rule.collective != request.collective || (rule.ranks != 0 && rule.ranks != request.size)) return false;
    return unknown_size ? rule.first == 0 && rule.last == INT64_MAX : bytes >= rule.first && bytes < rule.last;
  };
  const auto rule_in = [&](const std::vector<Rule>& rules) -> const Rule* {
    const auto found = std::find_if(rules.begin(), rules.end(), fits);
    return found != rules.end() && found->method.algorithm != Algorithm::automatic ? &*found : nullptr;
  };
  const Rule* const rule = rule_in(tuning.rules);
  // Rules do not know where buffers lie, so methods for the other device are skipped.
  const auto is_of_this_device = [&](Algorithm algorithm) {
    return circumstances.on_gpus ? !shares_memory(algorithm) : has_steps(algorithm);
  };
  if (rule != nullptr && is_of_this_device(rule->method.algorithm)) {
    trial.method = rule->method;
    return decided(trial, dtype, op, tuning.deterministic, rule->source, obstacle_of(trial));
  }
  const KnownCosts costs = KnownCosts::of(request, tuning, circumstances);
  // Measurements with another number of ranks, or of ranks per node or core, or with wider elements do not apply. None are
  // made with servers.
  const RouteCost& like = circumstances.several_nodes ? costs.between : costs.inside;
  const bool placed_alike = circumstances.several_nodes
                                ? request.ranks_per_node > 0 && like.ranks_per_node == request.ranks_per_node
                                : like.ranks_per_node == 0;
  const bool alike = request.servers == 0 && placed_alike && like.measured_with(request.size, circumstances.ranks_per_core);
  const std::vector<Rule>& table = circumstances.symmetric ? like.symmetric_rules : like.rules;
  if (const Rule* measured = alike ? rule_in(table) : nullptr) {
    trial.method = measured->method;
    const bool as_it_is = wire_of(request.collective, trial.method.algorithm, dtype, op) == dtype;
    const bool in_order = !tuning.deterministic || sums_in_order(trial, dtype, op);
    if (as_it_is && in_order && suits(trial, circumstances) && obstacle_of(trial).empty()) {
      return decided(trial, dtype, op, tuning.deterministic, "measurement, in " + measured->source, "");
    }
  }

  Choice choice;
  if (unknown_size) {
    trial.counts.clear();
    trial.receive_counts.clear();
    trial.count = 1024;
  }
  const auto consider = [&](const std::vector<Method>& methods) {
    for (const Method& method : methods) {
      trial.method = method;
      if (tuning.deterministic && !sums_in_order(trial, dtype, op)) continue;
      if (unknown_size && !takes_uneven_exchange(method.algorithm)) continue;
      if (!suits(trial, circumstances) || !obstacle_of(trial).empty()) continue;
      if (needs_nodes(method.algorithm) && !can_be_done(trial)) continue;
      Candidate candidate{method, wire_of(request.collective, method.algorithm, dtype, op), 0};
      candidate.seconds = costs.seconds_of(trial, candidate.wire);
      choice.candidates.push_back(candidate);
    }
    sort_by_seconds(choice.candidates);
  };
  if (circumstances.done_whole && !tuning.deterministic) {
    choice.candidates.push_back({whole_collective, dtype, whole_collective_seconds(trial, costs.inside.cost, dtype)});
  }
  consider(pairs_for(trial, circumstances.several_nodes));
  std::vector<Method> best_pairs;
  for (const Candidate& pair : choice.candidates) {
    if (pair.method.algorithm == Algorithm::two_level && best_pairs.size() < 3) best_pairs.push_back(pair.method);
  }
  consider(refinements_of(best_pairs, request));
  consider(methods_for(request, dtype, op, circumstances.servers_apart));
  ensure(!choice.candidates.empty(), "Nothing can do {} over {} ranks.", name(request.collective), request.size);
  const Candidate& best = best_of(choice.candidates);
  choice.method = best.method;
  choice.wire = best.wire;
  choice.reason = fmt::format("{}, {:.1f} us by the cost model", to_string(best.method), best.seconds * 1e6);
  return choice;
}

}  // namespace stretto
