// The costs of quantized collectives. A block has n elements and a record of b bytes, both of the longest block. There are m
// ranks on a node, N nodes and p ranks. delta is the cost of an element that is packed, unpacked, or both at once. For one
// piece:
// direct, reduce_scatter: alpha + (p-1) b beta + 2 p n delta, and all_gather: alpha + (p-1) b beta + (p+1) n delta; if nodes
// are known, split into the traffic inside nodes, m-1 of the blocks, and between nodes
// two_level, reduce_scatter: alpha + (m-1) N b beta inside, alpha + (N-1) b beta between, and (2 p + N) n delta
// two_level, all_gather: the same messages in reverse, and (p+1) n delta
// all_reduce: both, less n delta, since the last sum is quantized at once
// With s pieces there are s times as many rounds and messages, but the slowest stage hides most of the others: see
// seconds().
// If nodes differ, this is the cost of their smallest, whose ranks carry the most blocks: approximate.
#include <cmath>

#include "collectives/plan/nodes.hpp"
#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

class Group {
 public:
  explicit Group(const PlanRequest& request)
      : pieces_(request.method.pieces), ranks_(request.size), elements_(std::ceil(longest_share(request))) {
    if (request.method.algorithm != Algorithm::two_level && !knows_nodes(request)) return;
    const Nodes nodes = Nodes::of(request);
    if (nodes.count() == 1) return;
    nodes_ = nodes.count();
    on_node_ = nodes.smallest();
    two_level_ = request.method.algorithm == Algorithm::two_level && on_node_ > 1;
  }

  LevelCost reduce_scatter(QuantizedFormat format) const {
    LevelCost cost = messages(format);
    cost.inside.quantized = (2 * ranks_ + (two_level_ ? nodes_ : 0)) * elements_;
    return cost;
  }
  LevelCost all_gather(QuantizedFormat format, bool of_sums) const {
    LevelCost cost = messages(format);
    cost.inside.quantized = (ranks_ + (of_sums ? 0 : 1)) * elements_;
    return cost;
  }

 private:
  LevelCost messages(QuantizedFormat format) const {
    const auto block = static_cast<double>(packed_bytes(format, static_cast<std::int64_t>(elements_)));
    if (nodes_ == 1) return {messages(ranks_ - 1, block), {}};
    if (!two_level_) return {messages(on_node_ - 1, block), messages(ranks_ - on_node_, block)};
    return {messages(on_node_ - 1, nodes_ * block), messages(nodes_ - 1, block)};
  }
  Cost messages(double count, double bytes) const {
    return {count > 0 ? pieces_ : 0, count * pieces_, 0, 0, count * bytes, 0};
  }

  double pieces_;
  double ranks_;
  double elements_;  // of a block
  double nodes_ = 1;
  double on_node_ = 1;
  bool two_level_ = false;
};

}  // namespace

std::vector<LevelCost> quantized_phases(const PlanRequest& request) {
  check_quantized(request);
  const Group group(request);
  if (request.collective == Collective::all_gather) return {group.all_gather(request.quantized, false)};
  if (request.collective == Collective::reduce_scatter) return {group.reduce_scatter(request.quantized)};
  return {group.reduce_scatter(request.quantized), group.all_gather(request.quantized_result, true)};
}

}  // namespace stretto::plans
