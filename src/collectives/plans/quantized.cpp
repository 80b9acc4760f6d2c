// Quantized collectives (ZeRO++, Wang et al. 2023). Only quantized records travel. A contribution is quantized once, or
// twice in two levels, and a sum that goes to all ranks is quantized once more; a ring would quantize at every hop. (In
// onebit this is the collective of 1-bit Adam, Tang et al. 2021.) The vector consists of blocks, one for each rank.
//
// A block whose owner has place b on its node is carried, on each node of m ranks, by the rank with place b mod m. That rank
// adds its node's contributions to the block, or passes the block's records on to the other ranks of its node. On one level
// every rank is a node of its own. So nodes may differ in size, and trivial hops are left out: a node of one rank passes on
// its contributions as they are. A group of one rank quantizes like any other, so that its result has the same rounding.
//
// With pieces, each block is cut at whole groups. In one round, a piece is quantized, another piece travels inside nodes,
// the next between nodes, and an earlier one is added. Messages come first in a round, so that they travel while the others
// are worked on.
#include <functional>
#include <optional>

#include "collectives/plan/nodes.hpp"
#include "collectives/plans/generators.hpp"
#include "collectives/plans/levels/packed_layout.hpp"
#include "core/fail.hpp"

namespace stretto::plans {
namespace {

Nodes nodes_of(const PlanRequest& request) {
  if (request.method.algorithm != Algorithm::two_level) return Nodes::apart(request.size);
  Nodes nodes = Nodes::of(request);
  return nodes.count() > 1 ? nodes : Nodes::apart(request.size);
}

// One rank's plan.
class Exchange {
 public:
  explicit Exchange(const PlanRequest& request)
      : request_(request),
        plan_(request),
        cut_(request),
        nodes_(nodes_of(request)),
        node_(nodes_.node_of(request.rank)),
        local_(nodes_.local(request.rank)),
        ranks_(nodes_.size(node_)),
        carried_(ranks_) {
    for_each_block([this](int block, int place) { carried_[place % ranks_].push_back(block); });
  }

  Plan make() {
    switch (request_.collective) {
      case Collective::all_gather:
        keep_for_all(request_.quantized);
        quantize_own();
        gather();
        break;
      case Collective::reduce_scatter:
        scatter();
        sum_into_output();
        break;
      default:
        scatter();
        keep_for_all(request_.quantized_result);
        sum_into_records();
        gather();
    }
    add_rounds();
    return plan_.finish();
  }

 private:
  // The work on each piece in turn, one piece in a round.
  struct Stage {
    int first_round;
    bool travels;
    std::function<void(int piece)> add_steps;
  };

  int me() const { return request_.rank; }
  // Calls visit(block, place of its owner on the owner's node), in order.
  template <class Visit>
  void for_each_block(Visit visit) const {
    for (int node = 0; node < nodes_.count(); ++node) {
      for (int place = 0; place < nodes_.size(node); ++place) visit(nodes_.first(node) + place, place);
    }
  }
  // The rank that carries this rank's block on a node.
  int carrier_on(int node) const { return nodes_.first(node) + local_ % nodes_.size(node); }
  int neighbour(int local) const { return nodes_.first(node_) + local; }
  // The offset of a block's piece in a buffer that has all blocks, and in a buffer that has only this rank's block.
  std::int64_t place(int block, int piece) const { return cut_.shares().begin(block) + cut_.first(block, piece); }
  std::int64_t own_place(int piece) const { return cut_.first(me(), piece); }

  // Calls visit(member to send to, member to receive from) for the other members, beginning with the next one: so no two
  // members send to the same one at a time.
  template <class Visit>
  static void with_others(int mine, int all, Visit visit) {
    for (int i = 1; i < all; ++i) visit((mine + i) % all, (mine - i + all) % all);
  }

  // Each stage takes a piece in the round after the previous stage took it.
  void work(std::function<void(int)> add_steps) { stages_.push_back({next_round_++, false, std::move(add_steps)}); }
  void travel(std::function<void(int)> add_steps) { stages_.push_back({next_round_++, true, std::move(add_steps)}); }

  // Messages come first, so that they travel while the rest is done.
  void add_rounds() {
    const int rounds = next_round_ + cut_.pieces() - 1;
    for (int round = 0; round < rounds; ++round) {
      for (const bool travels : {true, false}) {
        for (const Stage& stage : stages_) {
          const int piece = round - stage.first_round;
          if (stage.travels == travels && piece >= 0 && piece < cut_.pieces()) stage.add_steps(piece);
        }
      }
      plan_.next_round();
    }
    memory_.claim(plan_);
  }

  // ---- the reduce-scatter, up to the last sum

  void scatter() {
    const QuantizedFormat format = request_.quantized;
    for (int carrier = 0; carrier < ranks_ && ranks_ > 1; ++carrier) {
      const bool mine = carrier == local_;
      outgoing_.emplace_back(cut_, format, carried_[carrier], mine ? ranks_ : 1, memory_);
    }
    std::vector<int> others;
    for (const int block : carried_[local_]) {
      if (block != me()) others.push_back(block);
    }
    node_sums_.emplace(cut_, format, std::move(others), 1, memory_);
    sums_.emplace(cut_, format, std::vector{me()}, nodes_.count(), memory_);

    work([this](int piece) { quantize_all(piece); });
    plan_.use_residual(Hop::contribution, cut_.shares().total());
    if (ranks_ > 1) {
      travel([this](int piece) {
        with_others(local_, ranks_, [&](int to, int from) {
          plan_.send(neighbour(to), outgoing_[to].message(piece));
          plan_.recv(neighbour(from), outgoing_[local_].message(piece, from));
        });
      });
      work([this](int piece) { sum_node(piece); });
    }
    travel([this](int piece) {
      with_others(node_, nodes_.count(), [&](int to, int from) {
        for (int place = local_; place < nodes_.size(to); place += ranks_) {
          const int owner = nodes_.first(to) + place;
          plan_.send(owner, node_sums_->block(owner, piece));
        }
        plan_.recv(carrier_on(from), sums_->block(me(), piece, from));
      });
    });
    // The following messages between nodes have the same peers.
    last_piece_gone_ = next_round_ + cut_.pieces() - 1;
  }

  void quantize_all(int piece) {
    for_each_block([&](int block, int its_place) {
      const int carrier = its_place % ranks_;
      const Slice records = ranks_ == 1         ? node_sum(block, piece)
                            : carrier == local_ ? outgoing_[carrier].block(block, piece, local_)
                                                : outgoing_[carrier].block(block, piece);
      plan_.quantize(input(place(block, piece), records.count), records, Hop::contribution, place(block, piece));
    });
  }
  // This node's contributions to a block that this rank carries. For this rank's own block they join those of all nodes; for
  // others they are sent.
  Slice node_sum(int block, int piece) const {
    return block == me() ? sums_->block(block, piece, node_) : node_sums_->block(block, piece);
  }
  void sum_node(int piece) {
    const PackedLayout& contributions = outgoing_[local_];
    std::int64_t residual = 0;
    for (const int block : carried_[local_]) {
      plan_.requantize(contributions.block(block, piece), ranks_, contributions.apart(piece), node_sum(block, piece), false,
                       Hop::node_sum, residual + cut_.first(block, piece));
      residual += cut_.shares().length(block);
    }
    plan_.use_residual(Hop::node_sum, residual);
  }

  void sum_into_output() {
    work([this](int piece) {
      const Slice first = sums_->block(me(), piece);
      plan_.dequantize_reduce(first, nodes_.count(), sums_->apart(piece), output(own_place(piece), first.count), true);
    });
  }
  void sum_into_records() {
    work([this](int piece) {
      plan_.requantize(sums_->block(me(), piece), nodes_.count(), sums_->apart(piece), gathered_[local_].block(me(), piece),
                       true, Hop::result, own_place(piece));
    });
    plan_.use_residual(Hop::result, cut_.shares().length(me()));
  }

  // ---- the all-gather, from this rank's own records on

  void keep_for_all(QuantizedFormat format) {
    for (const std::vector<int>& blocks : carried_) gathered_.emplace_back(cut_, format, blocks, 1, memory_);
  }
  void quantize_own() {
    work([this](int piece) {
      const Slice records = gathered_[local_].block(me(), piece);
      plan_.quantize(input(own_place(piece), records.count), records, Hop::contribution, own_place(piece));
    });
    plan_.use_residual(Hop::contribution, cut_.shares().length(me()));
  }
  // Sends to the carriers on all nodes, and passes on the records that have come to this rank to the other ranks of its
  // node.
  void gather() {
    next_round_ = std::max(next_round_, last_piece_gone_);
    travel([this](int piece) {
      with_others(node_, nodes_.count(), [&](int to, int from) {
        plan_.send(carrier_on(to), gathered_[local_].block(me(), piece));
        for (int place = local_; place < nodes_.size(from); place += ranks_) {
          const int owner = nodes_.first(from) + place;
          plan_.recv(owner, gathered_[local_].block(owner, piece));
        }
      });
    });
    if (ranks_ > 1) {
      travel([this](int piece) {
        with_others(local_, ranks_, [&](int to, int from) {
          plan_.send(neighbour(to), gathered_[local_].message(piece));
          plan_.recv(neighbour(from), gathered_[from].message(piece));
        });
      });
    }
    work([this](int piece) {
      for_each_block([&](int block, int its_place) {
        const Slice records = gathered_[its_place % ranks_].block(block, piece);
        plan_.dequantize(records, output(place(block, piece), records.count));
      });
    });
  }

  const PlanRequest& request_;
  PlanBuilder plan_;
  GroupCut cut_;
  Nodes nodes_;
  int node_;
  int local_;
  int ranks_;                              // on this node
  std::vector<std::vector<int>> carried_;  // blocks, by the rank of this node that carries them
  PackedMemory memory_;
  // Contributions by carrier. For the blocks that this rank carries, those of all ranks of its node. Empty if it is alone on
  // its node.
  std::vector<PackedLayout> outgoing_;
  std::optional<PackedLayout> node_sums_;  // to be sent to the blocks' owners
  std::optional<PackedLayout> sums_;       // of this rank's block, one from each node
  std::vector<PackedLayout> gathered_;     // results, by carrier
  std::vector<Stage> stages_;
  int next_round_ = 0;
  int last_piece_gone_ = 0;
};

std::string methods_text(Collective collective) {
  return fmt::format("{} or {}", name(collective == Collective::all_reduce ? Algorithm::two_shot : Algorithm::direct),
                     name(Algorithm::two_level));
}

}  // namespace

void check_quantized(const PlanRequest& request) {
  const char* const what = name(request.collective);
  const Method& method = request.method;
  require(can_be_quantized(request.collective), "{} cannot be quantized; {}, {} and {} can.", what,
          name(Collective::all_gather), name(Collective::reduce_scatter), name(Collective::all_reduce));
  require(quantizes(request.collective, method.algorithm), "A quantized {} cannot be done by {}; choose {}.", what,
          name(method.algorithm), methods_text(request.collective));
  require(method.inside == Algorithm::automatic && method.between == Algorithm::automatic &&
              method.above == Algorithm::automatic && method.lanes == 1,
          "A quantized {} by {} has no parts to choose and one lane; write {}, or {}/4 for pieces.", what, to_string(method),
          name(method.algorithm), name(method.algorithm));
  const bool has_result = request.quantized_result != QuantizedFormat::none;
  require(has_result || request.collective != Collective::all_reduce,
          "A quantized {} needs a format in which the sum goes to all, and quantized_result is none.", what);
  require(!has_result || request.collective == Collective::all_reduce,
          "A quantized {} has no result to quantize apart; leave quantized_result, {}, out.", what,
          name(request.quantized_result));
}

Plan quantized(const PlanRequest& request) {
  check_quantized(request);
  return Exchange(request).make();
}

}  // namespace stretto::plans
