// The cost of collectives on links, in seconds.
#include "stretto/planning/cost.hpp"

#include <algorithm>
#include <cmath>

#include "collectives/plan/nodes.hpp"
#include "collectives/plans/generators.hpp"

namespace stretto {
namespace {

struct OnLink {
  Cost cost;
  LinkCost link;
  double seconds(double bytes_per_element) const { return stretto::seconds(cost, link, bytes_per_element); }
  double busy_seconds(double bytes_per_element) const {
    return stretto::seconds(cost, {0, link.overhead, link.beta, link.gamma}, bytes_per_element);
  }
};

// The time of two levels, whose pieces go through both levels in several lanes. The pieces of one lane follow each other, so
// L lanes take 1/L of the sum. But the whole takes at least as long as each level is busy (without latencies), plus the time
// of the first or last piece in the other level, which nothing overlaps. With one lane this is the sum.
double overlapped(const OnLink& inside, const OnLink& between, double bytes_per_element, const Method& method) {
  const double in = inside.seconds(bytes_per_element);
  const double out = between.seconds(bytes_per_element);
  if (in == 0 || out == 0) return in + out;  // a single level, in one piece
  return std::max({(in + out) / method.lanes, inside.busy_seconds(bytes_per_element) + out / method.pieces,
                   between.busy_seconds(bytes_per_element) + in / method.pieces});
}

// The factor by which bytes go faster if this many ranks, or lanes, send at once.
double gain_of(const LinkCost& link, double senders) { return std::pow(1 + link.lane_gain, std::log2(senders)); }

}  // namespace

double seconds(const Cost& cost, const LinkCost& link, double bytes_per_element, int lanes) {
  const double beta = link.beta / gain_of(link, lanes);
  return cost.rounds * link.alpha + cost.messages * link.overhead +
         bytes_per_element * (cost.sent * beta + cost.work * link.gamma) + cost.packed * beta +
         cost.quantized * link.quantize;
}

namespace {

// The link between nodes as one rank sees it, while `ranks` ranks of its node send at once through the node's ports.
LinkCost shared(LinkCost link, double ranks, int ports) {
  const double senders = std::max(1.0, ranks / ports);
  link.beta *= senders / gain_of(link, senders);
  link.overhead *= senders;
  return link;
}

// The slowest of links inside, links between and local work hides the others, except for the first piece's way through all
// three.
double quantized_seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between,
                         double bytes_per_element, int ports) {
  const LinkCost& near = knows_nodes(request) ? inside : between;
  LinkCost far = between;
  if (knows_nodes(request)) {
    const Nodes nodes = Nodes::of(request);
    far = shared(between, static_cast<double>(request.size) / nodes.count(), ports);
  }
  double sum = 0;
  for (LevelCost cost : plans::quantized_phases(request)) {
    const double work = cost.inside.quantized * near.quantize;
    cost.inside.quantized = 0;
    const double parts[] = {work, seconds(cost.inside, near, bytes_per_element),
                            seconds(cost.between, far, bytes_per_element)};
    const double all = parts[0] + parts[1] + parts[2];
    const double slowest = *std::max_element(std::begin(parts), std::end(parts));
    sum += slowest + (all - slowest) / request.method.pieces;
  }
  return sum;
}

// For algorithms of one level: whether all ranks of a node send over the link between nodes at once. They do if every rank
// sends to every other rank, or to ranks at growing distances. Around a ring, or down a tree or chain, only one rank of a
// node does.
bool all_ranks_cross(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::direct:
    case Algorithm::pairwise:
    case Algorithm::bruck:
    case Algorithm::one_shot:
    case Algorithm::two_shot:
    case Algorithm::server_set:
    case Algorithm::recursive_doubling:
    case Algorithm::recursive_halving_doubling: return true;
    default: return false;
  }
}

LinkCost of_one_level(const PlanRequest& request, const LinkCost& between, int ports) {
  if (!knows_nodes(request) || has_root(request.collective) || !all_ranks_cross(request.method.algorithm)) return between;
  const Nodes nodes = Nodes::of(request);
  if (nodes.count() == 1) return between;
  const double ranks = static_cast<double>(request.size) / nodes.count();
  return shared(between, ranks * (request.size - ranks) / (request.size - 1), ports);
}

}  // namespace

double seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between, double bytes_per_element,
               int ports) {
  if (request.quantized != QuantizedFormat::none) {
    return quantized_seconds(request, inside, between, bytes_per_element, ports);
  }
  const LevelCost cost = cost_by_level(request);
  const Method& method = request.method;
  if (!needs_nodes(method.algorithm)) {
    return seconds(cost.inside, of_one_level(request, between, ports), bytes_per_element, method.lanes);
  }
  return overlapped({cost.inside, inside}, {cost.between, shared(between, cost.senders, ports)}, bytes_per_element, method);
}

Cost cost_of(const PlanRequest& request) {
  const LevelCost cost = cost_by_level(request);
  return cost.inside + cost.between;
}

}  // namespace stretto
