#include "planning/step/collective_costs.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {
namespace {

using Level = StepStage::Level;

int ranks_of_node(const StepCluster& cluster) {
  require(!cluster.links.levels.empty(), "A cluster's links have no level; give at least one.");
  const int ranks = cluster.links.levels.front().ranks;
  return cluster.links.levels.size() == 1 || ranks == 0 ? cluster.ranks : std::min(ranks, cluster.ranks);
}

LinkCost cost_of_level(const LinkModel& links, const LinkLevel& level) {
  return {level.alpha_us * 1e-6, level.overhead_us * 1e-6, 1e-9 / level.bandwidth_gbs, 1e-9 / links.local_gbs, 0, 0};
}

const LinkLevel& outer_level(const StepCluster& cluster) {
  std::size_t outer = 0;
  const auto& levels = cluster.links.levels;
  while (outer + 1 < levels.size() && levels[outer].ranks < cluster.ranks) ++outer;
  return levels[outer];
}

// The link between nodes as one of `groups` groups has it, when the groups share a node's ports.
LinkCost shared_by_groups(LinkCost link, int groups, int ports) {
  const double share = std::max(1.0, static_cast<double>(groups) / ports);
  link.beta *= share;
  link.overhead *= share;
  return link;
}

// Communicators send sums of narrow floats as f32, unless the algorithm rounds once (rounds_once()).
DType wire_of(Collective kind, Algorithm algorithm, DType dtype) {
  return reduces(kind) && is_narrow(dtype) && !rounds_once(algorithm) ? DType::f32 : dtype;
}

std::vector<Method> methods_of(Collective kind) {
  std::vector<Method> methods;
  for (const Algorithm algorithm : algorithms_for(kind)) {
    if (needs_nodes(algorithm) || uses_servers(algorithm) || shares_memory(algorithm)) continue;
    if (algorithm == Algorithm::bidirectional_ring) continue;
    for (int pieces = 1; pieces <= (takes_pieces(algorithm) ? 256 : 1); pieces *= 4) {
      methods.emplace_back(algorithm);
      methods.back().pieces = pieces;
    }
  }
  return methods;
}

}  // namespace

GroupPlacement GroupPlacement::of(const StepGroup& group, const StepCluster& cluster) {
  const int node = ranks_of_node(cluster);
  const int span = group.size * group.stride;
  require(cluster.ranks % node == 0 && span <= cluster.ranks && cluster.ranks % span == 0,
          "A group of {} ranks that are {} apart does not fit a cluster of {} ranks, {} a node.", group.size, group.stride,
          cluster.ranks, node);
  GroupPlacement place;
  place.ranks = group.size;
  place.on_node = std::clamp(node / group.stride, 1, group.size);
  place.groups = node / place.on_node;
  require(
      group.size % place.on_node == 0 && node % place.on_node == 0 && (group.stride % node == 0 || node % group.stride == 0),
      "Nodes of {} ranks would cut a group of {} ranks that are {} apart into unequal parts.", node, group.size,
      group.stride);
  return place;
}

bool CollectiveCosts::has(const StepCollective& collective, Form form) const {
  if (form == Form::whole) return true;
  const GroupPlacement where = place(collective.group);
  return (collective.kind == Collective::all_reduce || collective.kind == Collective::reduce_scatter ||
          collective.kind == Collective::all_gather) &&
         where.on_node > 1 && where.nodes() > 1;
}

double CollectiveCosts::hop_seconds(const StepGroup& ring, int messages, std::int64_t bytes) const {
  if (ring.size == 1 || messages == 0) return 0;
  const GroupPlacement where = place(ring);
  const LinkLevel& inner = cluster_.links.levels.front();
  const Cost hop{.rounds = 1, .messages = static_cast<double>(messages), .sent = static_cast<double>(bytes)};
  const double near = where.on_node > 1 ? seconds(hop, cost_of_level(cluster_.links, inner), 1) : 0;
  if (where.nodes() == 1) return near;
  // Each ring that has ranks on a node sends from one of them to the next node.
  const LinkCost network = cost_of_level(cluster_.links, outer_level(cluster_));
  return std::max(near, seconds(hop, shared_by_groups(network, where.groups, inner.ports), 1));
}

std::vector<StepStage> CollectiveCosts::stages(const StepCollective& collective, std::int64_t elements, Form form) {
  require(has(collective, form), "{} over {} ranks cannot be done {} on these links.", name(collective.kind),
          collective.group.size, name(form));
  const GroupPlacement where = place(collective.group);
  const auto inside = [&](Collective kind) { return stage(kind, Level::inside, where, elements, collective.dtype); };
  const auto between = [&](Collective kind) {
    const std::int64_t share = (elements + where.on_node - 1) / where.on_node;
    return stage(kind, Level::between, where, share, collective.dtype);
  };
  if (form == Form::whole) return {stage(collective.kind, Level::all, where, elements, collective.dtype)};
  if (collective.kind == Collective::reduce_scatter) return {inside(collective.kind), between(collective.kind)};
  if (collective.kind == Collective::all_gather) return {between(collective.kind), inside(collective.kind)};
  return {inside(Collective::reduce_scatter), between(Collective::all_reduce), inside(Collective::all_gather)};
}

StepStage CollectiveCosts::stage(Collective kind, Level level, const GroupPlacement& where, std::int64_t elements,
                                 DType dtype) {
  const Key key{kind, level, where.ranks, where.on_node, where.groups, elements, dtype};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_[key] = fastest(kind, level, where, elements, dtype);
}

StepStage CollectiveCosts::fastest(Collective kind, Level level, const GroupPlacement& where, std::int64_t elements,
                                   DType dtype) {
  StepStage best{kind, level, level == Level::all ? where.ranks : level == Level::inside ? where.on_node : where.nodes()};
  best.elements = elements;
  best.dtype = dtype;
  best.method = Algorithm::direct;
  if (best.ranks == 1) return best;
  const LinkModel& links = cluster_.links;
  const LinkCost near = cost_of_level(links, links.levels.front());
  const int ports = links.levels.front().ports;
  // Between nodes, each of a group's ranks on a node forms a group of its own with its peers on the other nodes.
  const int groups = level == Level::between ? where.groups * where.on_node : where.groups;
  const LinkCost network = cost_of_level(links, outer_level(cluster_));
  const LinkCost far = shared_by_groups(network, groups, ports);
  const bool leaves = where.nodes() > 1 && level != Level::inside;
  PlanRequest request{kind, Algorithm::ring, 0, best.ranks};
  request.count = counts_shares(kind) ? (elements + best.ranks - 1) / best.ranks : elements;
  if (level == Level::all && leaves && where.on_node > 1) request.ranks_per_node = where.on_node;
  best.seconds = -1;
  for (const Method& method : methods_of(kind)) {
    request.method = method;
    const DType wire = wire_of(kind, method.algorithm, dtype);
    const auto width = static_cast<double>(size_of(wire));
    const LinkCost& link = leaves ? far : near;
    const double seconds = stretto::seconds(request, near, link, width, leaves ? std::max(1, ports / groups) : request.size);
    if (best.seconds >= 0 && seconds >= best.seconds) continue;
    const Cost cost = cost_of(request);
    best.method = method;
    best.seconds = seconds;
    best.dtype = wire;
    best.bytes_sent = static_cast<std::int64_t>(cost.sent * width);
    best.bytes_between = leaves ? best.bytes_sent : 0;
    best.links = leaves ? LinkSeconds{0, seconds} : LinkSeconds{seconds, 0};
    // Messages inside nodes occupy the links there while others cross. If both use a rank's port, messages that cross occupy
    // it too.
    if (leaves && level == Level::all && where.on_node > 1) best.links.inside = cost.sent * width * near.beta;
    if (leaves && !outer_level(cluster_).own_ports) {
      best.links.inside = cost.messages * network.overhead + cost.sent * width * network.beta;
    }
    best.links.inside = std::min(best.links.inside, seconds);
  }
  ensure(best.seconds >= 0, "Nothing can do {} over {} ranks.", name(kind), best.ranks);
  return best;
}

}  // namespace stretto
