// The stages of two levels: collectives inside nodes, and collectives between the ranks with the same place on each node.
// Each has an algorithm of its own. So few bytes cross the slow boundary, and all ranks of a node share the work of sending
// them. With three levels, the stage between nodes itself has two levels: between the nodes of a pod, and between pods. If a
// part needs blocks side by side, copies bring them together in scratch.
#include "collectives/plans/levels/levels.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <functional>
#include <numeric>

#include "collectives/plans/levels/cross_node_roles.hpp"
#include "core/fail.hpp"

namespace stretto::plans {
namespace {

using Counts = std::vector<std::int64_t>;

// Whether a vector with a root goes between nodes in shares. This needs an algorithm inside nodes by which a node's ranks
// can gather the vector (broadcast) or reduce and scatter it (reduce). Otherwise one rank of each node carries the whole
// vector.
bool goes_in_shares(Collective whole, Algorithm inside) {
  if (!has_root(whole)) return true;
  return can_do(whole == Collective::broadcast ? Collective::all_gather : Collective::reduce_scatter, inside);
}

class Stager {
 public:
  Stager(const PlanRequest& request, const Nodes& nodes, const LaneCut& cut, int piece)
      : whole_(request),
        nodes_(nodes),
        piece_{cut, piece},
        node_(nodes.node_of(request.rank)),
        local_(nodes.local(request.rank)),
        ranks_(nodes.size(node_)) {}

  Stages run() {
    stages_.list.reserve(3);
    const bool levels = nodes_.count() > 1 && nodes_.largest() > 1;
    const bool shared = goes_in_shares(whole_.collective, whole_.method.inside) && nodes_.largest() > 1;
    switch (whole_.collective) {
      case Collective::all_reduce: nodes_.largest() > 1 ? all_reduce() : one_level(); break;
      case Collective::reduce_scatter: levels ? reduce_scatter() : one_level(); break;
      case Collective::all_gather: levels ? all_gather() : one_level(); break;
      case Collective::all_to_all: levels ? all_to_all() : one_level(); break;
      case Collective::broadcast: shared ? broadcast_shares() : levels ? broadcast_whole() : one_level(); break;
      case Collective::reduce: shared ? reduce_shares() : levels ? reduce_whole() : one_level(); break;
      default: fail(ErrorCode::internal, "{} has no levels.", name(whole_.collective));
    }
    return std::move(stages_);
  }

 private:
  std::int64_t begin(std::int64_t count) const { return piece_.begin(count); }
  std::int64_t length(std::int64_t count) const { return piece_.length(count); }

  // On one node, or with one rank on each node, one level performs the whole collective.
  void one_level() {
    std::vector<int> all(whole_.size);
    std::iota(all.begin(), all.end(), 0);
    const Level level = nodes_.largest() > 1 ? Level::inside : Level::between;
    PlanRequest& part =
        add(level, whole_.collective, std::move(all), whole_.rank, whole_.root, input(0, 0), output(0, 0), true);
    part.count = whole_.count;
    part.counts = whole_.counts;
    part.receive_counts = whole_.receive_counts;
  }

  void all_reduce() {
    const std::int64_t at = begin(whole_.count);
    const Slices slices(nodes_, whole_.rank, length(whole_.count));
    const Slice own = output(at + slices.own_begin(), 0);
    const bool one_node = nodes_.count() == 1;
    inside(Collective::reduce_scatter, slices.counts(node_), input(at, 0), own, one_node);
    if (!one_node) between(Collective::all_reduce, slices, output(at, 0), output(at, 0), 0);
    inside(Collective::all_gather, slices.counts(node_), own, output(at, 0), false);
  }

  // The root's node scatters the vector into shares. Every node then receives the shares, and gathers them.
  void broadcast_shares() {
    const std::int64_t at = begin(whole_.count);
    const int root = nodes_.node_of(whole_.root);
    const Slices slices(nodes_, whole_.rank, length(whole_.count));
    const Slice own = output(at + slices.own_begin(), 0);
    if (node_ == root) {
      inside(Collective::scatter, slices.counts(node_), input(at, 0), own, false, Algorithm::direct);
    }
    if (nodes_.count() > 1) between(Collective::broadcast, slices, output(at, 0), output(at, 0), root);
    inside(Collective::all_gather, slices.counts(node_), own, output(at, 0), false);
  }

  // broadcast_shares() in reverse. Only the root has an output.
  void reduce_shares() {
    const std::int64_t at = begin(whole_.count);
    const int root = nodes_.node_of(whole_.root);
    const Slices slices(nodes_, whole_.rank, length(whole_.count));
    const bool is_root = whole_.rank == whole_.root;
    const Slice sums = is_root ? output(at, 0) : scratch(-slices.own_begin(), 0);
    const Slice own{sums.buffer, sums.offset + slices.own_begin(), 0};
    const bool one_node = nodes_.count() == 1;
    inside(Collective::reduce_scatter, slices.counts(node_), input(at, 0), own, one_node);
    if (!one_node) between(Collective::reduce, slices, sums, sums, root);
    if (node_ == root) inside(Collective::gather, slices.counts(node_), own, output(at, 0), false, Algorithm::direct);
    stages_.scratch_count = is_root ? 0 : slices.own_length();
  }

  void broadcast_whole() {
    const Slice all = output(begin(whole_.count), 0);
    const std::int64_t n = length(whole_.count);
    if (whole_.rank == beside_root(node_)) {
      between(Collective::broadcast, n, beside_root(), input(all.offset, 0), all, nodes_.node_of(whole_.root));
    }
    inside(Collective::broadcast, beside_root(node_), n, all, all);
  }

  void reduce_whole() {
    const std::int64_t at = begin(whole_.count);
    const std::int64_t n = length(whole_.count);
    const bool is_root = whole_.rank == whole_.root;
    const Slice node_sum = is_root ? output(at, 0) : scratch(0, 0);
    inside(Collective::reduce, beside_root(node_), n, input(at, 0), node_sum);
    if (whole_.rank != beside_root(node_)) return;
    between(Collective::reduce, n, beside_root(), node_sum, output(at, 0), nodes_.node_of(whole_.root));
    stages_.scratch_count = is_root ? 0 : n;
  }

  // The blocks are brought into the order of the ranks that carry them, so that each rank reduces its blocks as one share.
  void reduce_scatter() {
    const Blocks blocks(nodes_, whole_.rank, Shares::of(whole_), piece_);
    round(blocks.copies(input(0, 0), scratch(0, 0)));
    const Slice own = scratch(blocks.begin(local_), 0);
    inside(Collective::reduce_scatter, blocks.counts(), scratch(0, 0), own, false);
    stages_.scratch_count = blocks.total();
    const std::int64_t n = blocks.length(whole_.rank);
    const Slice result = output(begin(Shares::of(whole_).length(whole_.rank)), n);
    if (nodes_.alike()) return between(Collective::reduce_scatter, blocks.carried_counts(), own, result);

    const Slice sums = scratch(blocks.total(), nodes_.count() * n);
    stages_.scratch_count += sums.count;
    std::vector<Step> exchange;
    for (const int owner : blocks.carried(local_)) {
      const Slice sum = scratch(blocks.place(owner), blocks.length(owner));
      const Slice to = scratch(sums.offset + node_ * n, n);
      exchange.push_back(owner == whole_.rank ? Step{StepKind::copy, false, -1, sum, to}
                                              : Step{StepKind::send, false, owner, sum, {}});
    }
    for (int node = 0; node < nodes_.count(); ++node) {
      if (node != node_) receive(exchange, blocks.carrier(node, whole_.rank), scratch(sums.offset + node * n, n));
    }
    round(exchange, Level::between);
    round({{StepKind::reduce, true, -1, sums, result}}, Level::between);
  }

  // reduce_scatter() in reverse.
  void all_gather() {
    const Blocks blocks(nodes_, whole_.rank, Shares::of(whole_), piece_);
    const Slice own = scratch(blocks.begin(local_), 0);
    const Slice mine = input(begin(Shares::of(whole_).length(whole_.rank)), blocks.length(whole_.rank));
    if (nodes_.alike()) {
      between(Collective::all_gather, blocks.carried_counts(), mine, own);
    } else {
      std::vector<Step> exchange;
      for (int node = 0; node < nodes_.count(); ++node) {
        if (node != node_) exchange.push_back({StepKind::send, false, blocks.carrier(node, whole_.rank), mine, {}});
      }
      for (const int owner : blocks.carried(local_)) {
        const Slice to = scratch(blocks.place(owner), blocks.length(owner));
        if (owner != whole_.rank)
          receive(exchange, owner, to);
        else
          exchange.push_back({StepKind::copy, false, -1, mine, to});
      }
      round(exchange, Level::between);
    }
    inside(Collective::all_gather, blocks.counts(), own, scratch(0, 0), false);
    round(blocks.copies(scratch(0, 0), output(0, 0)));
    stages_.scratch_count = blocks.total();
  }

  // Inside, every rank gets its node's data for the ranks whose blocks it carries. Between nodes, all data reaches its
  // owners.
  void all_to_all() {
    const Blocks blocks(nodes_, whole_.rank, Shares::of(whole_), piece_);
    const std::vector<int>& carried = blocks.carried(local_);
    const auto places = static_cast<std::int64_t>(carried.size());
    const std::int64_t n = length(whole_.count);
    const std::int64_t begins = begin(whole_.count);
    round(blocks.copies(input(0, 0), scratch(0, 0)));
    const Slice arrived = scratch(std::max(blocks.total(), places * ranks_ * n), 0);  // by sender, then by owner
    inside(Collective::all_to_all, blocks.counts(), scratch(0, 0), arrived, false);
    const std::int64_t home = arrived.offset + places * ranks_ * n;

    std::vector<Step> order;
    for (int place = 0; place < places; ++place) {
      for (int from = 0; from < ranks_; ++from) {
        order.push_back({StepKind::copy, false, -1, scratch(arrived.offset + (from * places + place) * n, n),
                         scratch((place * ranks_ + from) * n, n)});
      }
    }
    round(order);
    stages_.scratch_count = home;
    const bool in_pieces = n != whole_.count;
    if (in_pieces) stages_.scratch_count += blocks.total();
    const Slice result = in_pieces ? scratch(home, 0) : output(0, 0);
    if (nodes_.alike()) {
      between(Collective::all_to_all, Counts(static_cast<std::size_t>(nodes_.count()), ranks_ * n), scratch(0, 0), result);
    } else {
      std::vector<Step> exchange;
      for (int place = 0; place < places; ++place) {
        const Slice block = scratch(place * ranks_ * n, ranks_ * n);
        const Slice to{result.buffer, result.offset + nodes_.first(node_) * n, block.count};
        exchange.push_back(carried[place] == whole_.rank ? Step{StepKind::copy, false, -1, block, to}
                                                         : Step{StepKind::send, false, carried[place], block, {}});
      }
      for (int node = 0; node < nodes_.count(); ++node) {
        if (node == node_) continue;
        receive(exchange, blocks.carrier(node, whole_.rank),
                {result.buffer, result.offset + nodes_.first(node) * n, nodes_.size(node) * n});
      }
      round(exchange, Level::between);
    }
    if (!in_pieces) return;
    std::vector<Step> apart;
    for (int from = 0; from < whole_.size; ++from) {
      apart.push_back({StepKind::copy, false, -1, scratch(home + from * n, n), output(from * whole_.count + begins, n)});
    }
    round(apart);
  }

  // The rank of a node that carries a whole vector with a root.
  int beside_root(int node) const { return nodes_.first(node) + nodes_.local(whole_.root) % nodes_.size(node); }
  std::vector<int> beside_root() const {
    std::vector<int> ranks(nodes_.count());
    for (int node = 0; node < nodes_.count(); ++node) ranks[node] = beside_root(node);
    return ranks;
  }

  static void receive(std::vector<Step>& steps, int peer, const Slice& to) {
    steps.push_back({StepKind::recv, false, peer, {}, to});
  }
  void round(std::vector<Step> steps, Level level = Level::inside) {
    Stage& stage = stages_.list.emplace_back();
    stage.level = level;
    stage.steps = std::move(steps);
  }

  PlanRequest& add(Level level, Collective collective, std::vector<int> members, int rank, int root, const Slice& from,
                   const Slice& to, bool finishes) {
    Stage& stage = stages_.list.emplace_back();
    stage.level = level;
    stage.input = from;
    stage.output = to;
    stage.finishes = finishes;
    PlanRequest& part = stage.part;
    part.collective = collective;
    part.method = whole_.method.inside;
    part.rank = rank;
    part.size = static_cast<int>(members.size());
    part.root = root;
    stage.members = std::move(members);
    if (level == Level::between) {
      part.method = whole_.method.between;
      if (whole_.method.algorithm == Algorithm::three_level) {
        part.method = Algorithm::two_level;
        part.method.inside = whole_.method.between;
        part.method.between = whole_.method.above;
        part.ranks_per_node = whole_.nodes_per_pod;
      }
    }
    return part;
  }
  static void set_counts(PlanRequest& part, Counts counts) {
    if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
      part.count = counts.front();
    } else {
      part.counts = std::move(counts);
    }
  }

  std::vector<int> neighbours() const {
    std::vector<int> members(ranks_);
    std::iota(members.begin(), members.end(), nodes_.first(node_));
    return members;
  }
  // A collective of shares, one for each rank of the node.
  void inside(Collective collective, Counts counts, const Slice& from, const Slice& to, bool finishes,
              Algorithm by = Algorithm::automatic) {
    const bool here = has_root(collective) && nodes_.node_of(whole_.root) == node_;
    const int root = here ? nodes_.local(whole_.root) : 0;
    const std::int64_t own = counts[local_];
    PlanRequest& part = add(Level::inside, collective, neighbours(), local_, root, from, to, finishes);
    if (by != Algorithm::automatic) part.method = by;
    set_counts(part, std::move(counts));
    if (collective == Collective::all_to_all && !part.counts.empty()) part.receive_counts.assign(ranks_, own);
  }
  // A collective of a whole vector.
  void inside(Collective collective, int root, std::int64_t count, const Slice& from, const Slice& to) {
    add(Level::inside, collective, neighbours(), local_, root - nodes_.first(node_), from, to, false).count = count;
  }

  // A collective of blocks or shares between the ranks of this place on all nodes, which must be of equal size.
  void between(Collective collective, Counts counts, const Slice& from, const Slice& to) {
    std::vector<int> members(nodes_.count());
    for (int node = 0; node < nodes_.count(); ++node) members[node] = nodes_.first(node) + local_;
    set_counts(add(Level::between, collective, std::move(members), node_, 0, from, to, true), std::move(counts));
  }
  // A collective for every slice that this rank carries. All ranks keep the order of slices, so that no slice waits for a
  // later one.
  void between(Collective collective, const Slices& slices, const Slice& from, const Slice& to, int root) {
    for (int slice = slices.first(); slice < slices.end(); ++slice) {
      between(collective, slices.length(slice), slices.carriers(slice), at(from, slices.begin(slice)),
              at(to, slices.begin(slice)), root);
    }
  }
  void between(Collective collective, std::int64_t count, std::vector<int> members, const Slice& from, const Slice& to,
               int root) {
    add(Level::between, collective, std::move(members), node_, root, from, to, true).count = count;
  }
  static Slice at(const Slice& base, std::int64_t offset) { return {base.buffer, base.offset + offset, 0}; }

  const PlanRequest& whole_;
  const Nodes& nodes_;
  Piece piece_;
  int node_, local_;  // of this rank
  int ranks_;         // ranks of this rank's node
  Stages stages_;
};

bool can_be_a_part(Collective collective, Algorithm algorithm) {
  const bool several_lanes = algorithm == Algorithm::bidirectional_ring || algorithm == Algorithm::double_binary_tree;
  return can_do(collective, algorithm) && !needs_nodes(algorithm) && !several_lanes && !uses_servers(algorithm) &&
         !shares_memory(algorithm);
}

void check_part(const PlanRequest& request, Algorithm part, Collective collective) {
  if (can_be_a_part(collective, part)) return;
  std::vector<std::string> names;
  for (const Algorithm known : algorithms_for(collective)) {
    if (can_be_a_part(collective, known)) names.emplace_back(name(known));
  }
  const std::vector<std::string> parts(request.method.algorithm == Algorithm::three_level ? 3 : 2, names.front());
  require(part != Algorithm::automatic,
          "{} by {} lacks a part, which only what is quantized may; write {}({}), for example.", name(request.collective),
          to_string(request.method), name(request.method.algorithm), fmt::join(parts, "+"));
  fail(ErrorCode::invalid_argument, "{} has {} as a part, where {} is done by {}.", to_string(request.method), name(part),
       name(collective), fmt::join(names, " or "));
}

// Checks a part that is not the outermost level.
void check_inner_part(const PlanRequest& request, Algorithm part) {
  const Collective whole = request.collective;
  const bool in_shares = has_root(whole) && goes_in_shares(whole, part);
  if (whole == Collective::all_reduce || (whole == Collective::reduce && in_shares)) {
    check_part(request, part, Collective::reduce_scatter);
  }
  if (whole == Collective::all_reduce || (whole == Collective::broadcast && in_shares)) {
    check_part(request, part, Collective::all_gather);
  }
  if (whole != Collective::all_reduce && !in_shares) check_part(request, part, whole);
}

}  // namespace

// The answer is the same on all ranks, whatever parts each of them has.
void check_levels(const PlanRequest& request, const Nodes& nodes) {
  const Method& method = request.method;
  const Collective whole = request.collective;
  check_inner_part(request, method.inside);
  if (method.algorithm == Algorithm::two_level) {
    check_part(request, method.between, whole);
  } else {
    check_inner_part(request, method.between);
    check_part(request, method.above, whole);
    require(request.nodes_per_pod > 0 && nodes.count() % request.nodes_per_pod == 0,
            "three_level needs whole pods, and {} nodes cannot lie in pods of {}; give nodes_per_pod, or choose two_level.",
            nodes.count(), request.nodes_per_pod);
  }
  require(request.counts.empty() || whole != Collective::all_to_all,
          "all_to_all by {} takes one count for all ranks, not {} counts; choose another algorithm.", name(method.algorithm),
          request.counts.size());
  if (nodes.alike() || !counts_shares(whole)) return;
  const bool straight = method.algorithm == Algorithm::two_level && method.between == Algorithm::direct;
  const bool exchanges = whole != Collective::all_to_all || takes_uneven_exchange(method.inside);
  require(straight && exchanges,
          "{} by {} over nodes of {} to {} ranks: there blocks go straight to their owners; choose two_level({}+direct).",
          name(whole), to_string(method), nodes.smallest(), nodes.largest(),
          name(exchanges ? method.inside : Algorithm::direct));
}

Stages stages_of(const PlanRequest& request, const Nodes& nodes, const LaneCut& cut, int piece) {
  return Stager(request, nodes, cut, piece).run();
}

int senders(const PlanRequest& request, const Nodes& nodes) {
  return goes_in_shares(request.collective, request.method.inside) ? nodes.smallest() : 1;
}

}  // namespace stretto::plans
