#include "planning/layout/block_time.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "stretto/planning/attention_cost.hpp"

namespace stretto {
namespace {

// A product and its exchange run in so many chunks. The library chooses the number by size; four is usual.
constexpr double overlap_chunks = 4;

}  // namespace

double collective_seconds(CollectiveCosts& costs, Collective kind, std::int64_t elements, DType dtype,
                          const StepGroup& group, bool narrow_sums) {
  if (group.size == 1 || elements == 0) return 0;
  StepCollective collective{.kind = kind, .elements = elements, .dtype = dtype, .group = group};
  if (narrow_sums && reduces(kind) && size_of(dtype) == 2) {  // half as many f32 have the same bytes
    collective.dtype = DType::f32;
    collective.elements = (elements + 1) / 2;
  }
  double best = -1;
  for (const Form form : {Form::whole, Form::by_level}) {
    if (!costs.has(collective, form)) continue;
    double seconds = 0;
    for (const StepStage& stage : costs.stages(collective, collective.elements, form)) seconds += stage.seconds;
    if (best < 0 || seconds < best) best = seconds;
  }
  return best;
}

BlockTimes::BlockTimes(const TrainingOptions& layout, bool splits, const TrainingCluster& cluster,
                       const TrainingSystem& system, std::int64_t ranks, CollectiveCosts& costs)
    : layout_(layout),
      splits_(splits),
      cluster_(cluster),
      system_(system),
      ranks_(ranks),
      tensor_(layout.tensor_parallel()),
      dtype_(layout.sharding.dtype),
      width_(static_cast<double>(size_of(dtype_))) {
  const std::int64_t tokens = layout.micro_batch * layout.division().rows(layout.model.sequence);
  tokens_ = static_cast<double>(tokens);
  own_tokens_ = static_cast<double>(tensor_.own_rows(tokens).count);
  hidden_ = static_cast<double>(layout.model.hidden);
  ranks_tensor_ = layout.mesh[Axis::tensor];
  const TransformerShape block = layout.model.block();
  const auto queries = static_cast<double>(block.heads * block.head_size);
  const auto packed = static_cast<double>((block.heads + 2 * block.kv_heads) * block.head_size);
  const auto mlp_width = static_cast<double>(block.mlp_width);
  packed_ = packed / hidden_;
  mlp_ = mlp_width / hidden_;
  qkv_ = linear(hidden_, packed / ranks_tensor_);
  projection_ = linear(queries / ranks_tensor_, hidden_);
  up_ = linear(hidden_, mlp_width / ranks_tensor_);
  down_ = linear(mlp_width / ranks_tensor_, hidden_);
  const StepGroup group{layout.mesh[Axis::tensor], 1};
  const std::int64_t elements = tokens * layout.model.hidden;
  // Links are described as they are when all ranks communicate. On shared cores the schedule's time counts ranks that wait
  // for a turn.
  const auto seconds = [&](Collective kind) {
    return collective_seconds(costs, kind, elements, dtype_, group, cluster.narrow_sums) / cluster.turns(ranks);
  };
  if (tensor_.has_own_rows() || layout.recompute.partition) gather_ = seconds(Collective::all_gather);
  if (tensor_.has_own_rows()) {
    scatter_ = seconds(Collective::reduce_scatter);
  } else {
    all_reduce_ = seconds(Collective::all_reduce);
  }
}

// The product for a weight's gradient adds to it, and reads and writes it in the gradient's type; where a pass of its own
// adds it up, that comes on top. (That a step's first product only writes it is left out.)
BlockTimes::Products BlockTimes::linear(double in, double out) const {
  const double weights = in * out;
  const auto gradient = static_cast<double>(size_of(layout_.sharding.gradients()));
  Products products{};
  products.forward = cluster_.product_seconds(dtype_, tokens_, out, in);
  products.input = cluster_.product_seconds(dtype_, tokens_, in, out);
  products.weight = cluster_.product_seconds(dtype_, out, in, tokens_, 1, weights * (2 * gradient - width_));
  if (system_.accumulate_bytes > 0) products.weight += cluster_.pass_seconds(weights * system_.accumulate_bytes);
  return products;
}

double BlockTimes::pass(const BlockTraffic& traffic) const {
  const double scores = static_cast<double>(layout_.micro_batch * layout_.model.heads) / ranks_tensor_ *
                        static_cast<double>(layout_.model.sequence) * static_cast<double>(layout_.model.sequence);
  const double elements =
      traffic.rows * own_tokens_ * hidden_ + traffic.wide * tokens_ * hidden_ / ranks_tensor_ + traffic.scores * scores;
  return cluster_.pass_seconds(elements * width_, traffic.kernels);
}

// This library: two norms; the residual's addition, which is part of the product on one rank, and else follows the exchange
// with the bias; GELU; with own rows the bias of q, k and v by itself.
BlockTraffic BlockTimes::forward_traffic() const {
  if (system_.writes_scores) return system_.forward;
  const bool alone = ranks_tensor_ == 1;
  const bool own = tensor_.has_own_rows();
  return {4.0 + (alone ? 2 : 10), 2 * mlp_ + (own ? 2 * packed_ : 0), 0, 3.0 + (alone ? 0 : 4) + (own ? 1 : 0)};
}

// Norms read their inputs and gradients, and add to a gradient; GELU; gradients that are left for later are copied.
BlockTraffic BlockTimes::backward_traffic() const {
  if (system_.writes_scores) return system_.backward;
  return {8.0 + (splits_ ? 4 : 0), 3 * mlp_, 0, 3.0 + (splits_ ? 2 : 0)};
}

// The gradients of biases are sums of columns.
BlockTraffic BlockTimes::weight_traffic() const {
  return system_.writes_scores ? BlockTraffic{} : BlockTraffic{2, packed_ + mlp_, 0, 4};
}

BlockTraffic BlockTimes::again_traffic() const {
  return system_.writes_scores ? system_.attention : BlockTraffic{4, 2 * mlp_, 0, 3};
}

PartTime BlockTimes::attention() const {
  PartTime time;
  const MeshShape& mesh = layout_.mesh;
  if (system_.writes_scores) {
    require(mesh[Axis::ring] == 1 && mesh[Axis::ulysses] == 1,
            "Attention that writes its scores cannot be divided over {} ring and {} ulysses ranks; leave both at 1.",
            mesh[Axis::ring], mesh[Axis::ulysses]);
    const auto sequence = static_cast<double>(layout_.model.sequence);
    const double head = hidden_ / static_cast<double>(layout_.model.heads);
    const double batch = static_cast<double>(layout_.micro_batch * layout_.model.heads) / ranks_tensor_;
    const double scores = cluster_.product_seconds(dtype_, sequence, sequence, head, batch);
    const double result = cluster_.product_seconds(dtype_, sequence, head, sequence, batch);
    time.forward.computing = scores + result;
    time.input.computing = scores + 3 * result;
    return time;
  }
  const TransformerShape block = layout_.model.block();
  const AttentionMachine machine{{cluster_.links, static_cast<int>(ranks_)}, cluster_.attention_flops};
  const AttentionCost cost = attention_cost({.batch = layout_.micro_batch,
                                             .sequence = layout_.model.sequence,
                                             .hidden = block.heads * block.head_size,
                                             .heads = block.heads,
                                             .kv_heads = block.kv_heads,
                                             .dtype = dtype_,
                                             .mask = layout_.mask,
                                             .division = layout_.division(),
                                             .tensor = mesh[Axis::tensor]},
                                            &machine);
  for (const auto& [pass, result] : {std::pair{cost.forward, &time.forward}, {cost.backward, &time.input}}) {
    result->computing = pass.computing + cluster_.launch_seconds;
    (mesh[Axis::ring] > 1 ? result->ring : result->ulysses) = pass.exposed();
  }
  return time;
}

double BlockTimes::beside(double exchange, double product) const {
  if (!system_.overlaps_products) return exchange;
  const double part = (overlap_chunks - 1) / overlap_chunks;
  return exchange / overlap_chunks + std::max(0.0, part * (exchange - product));
}

double BlockTimes::behind(double exchange, double product) const {
  return system_.overlaps_weights && !splits_ ? std::max(0.0, exchange - product) : exchange;
}

// Forward: what a row-parallel layer sums; with own rows also what a column-parallel one gathers. Backward: the same the
// other way round, and with own rows the inputs again for the gradients of weights, which come beside the product before.
void BlockTimes::add_exchanges(PartTime& block, PassTime& last_projection) const {
  if (ranks_tensor_ == 1) return;
  if (!tensor_.has_own_rows()) {
    last_projection.tensor = beside(all_reduce_, down_.forward);
    block.forward.tensor = beside(all_reduce_, projection_.forward) + last_projection.tensor;
    block.input.tensor = behind(all_reduce_, qkv_.weight) + behind(all_reduce_, up_.weight);
    return;
  }
  last_projection.tensor = beside(scatter_, down_.forward);
  block.forward.tensor = beside(gather_, qkv_.forward) + beside(scatter_, projection_.forward) +
                         beside(gather_, up_.forward) + last_projection.tensor;
  block.input.tensor = beside(gather_, down_.input) + beside(gather_, projection_.input) + behind(scatter_, up_.weight) +
                       behind(scatter_, qkv_.weight);
  if (!tensor_.keeps_gathered) block.input.tensor += behind(gather_, up_.input) + behind(gather_, qkv_.input);
  if (splits_ && !tensor_.keeps_gathered) block.weight.tensor = 2 * gather_;
}

PartTime BlockTimes::block() const {
  const PartTime attention = this->attention();
  PartTime block;
  block.forward.computing = qkv_.forward + projection_.forward + up_.forward + down_.forward + pass(forward_traffic());
  block.input.computing = qkv_.input + projection_.input + up_.input + down_.input + pass(backward_traffic());
  block.weight.computing = qkv_.weight + projection_.weight + up_.weight + down_.weight + pass(weight_traffic());
  PassTime last_projection{.computing = down_.forward};
  add_exchanges(block, last_projection);
  block.forward = block.forward + attention.forward;
  block.input = block.input + attention.input;
  if (layout_.recompute.level == Recompute::selective) {
    block.input.computing += pass(again_traffic());
    if (system_.writes_scores) block.input = block.input + attention.forward;
  }
  if (layout_.recompute.level == Recompute::full) {
    block.input = block.input + block.forward;
    if (!system_.recomputes_whole_blocks) block.input = block.input + (-1) * last_projection;
    if (layout_.recompute.partition) block.input.tensor += beside(gather_, qkv_.input);
  }
  return block;
}

// The table's rows are read, written and added to the positions', and summed over the ranks that have other rows of it.
PartTime BlockTimes::embeddings() const {
  PartTime time;
  time.forward.computing = pass({.rows = 8, .kernels = 3});
  time.input.computing = pass({.rows = 4, .kernels = 2});
  time.forward.tensor = tensor_.has_own_rows() ? scatter_ : all_reduce_;
  if (tensor_.has_own_rows()) time.input.tensor = gather_;
  return time;
}

PartTime BlockTimes::head() const {
  const double columns = static_cast<double>(layout_.model.vocabulary) / ranks_tensor_;
  const double loss_bytes = system_.loss_bytes > 0 ? system_.loss_bytes : 3 * width_;
  const Products logits = linear(hidden_, columns);
  PartTime time;
  time.forward.computing =
      logits.forward + pass({.rows = 2, .kernels = 1}) + cluster_.pass_seconds(tokens_ * columns * loss_bytes / 3, 2);
  time.input.computing =
      logits.input + pass({.rows = 4, .kernels = 1}) + cluster_.pass_seconds(tokens_ * columns * loss_bytes * 2 / 3, 2);
  time.weight.computing = logits.weight;
  if (tensor_.has_own_rows()) {
    time.forward.tensor = beside(gather_, logits.forward);
    time.input.tensor = behind(scatter_, logits.weight) + behind(gather_, logits.input);
  } else {
    time.input.tensor = behind(all_reduce_, logits.weight);
  }
  return time;
}

}  // namespace stretto
