#include "planning/layout/layer_time.hpp"

#include <algorithm>
#include <limits>

#include "core/fail.hpp"
#include "planning/layout/planned_stage.hpp"
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

LayerTimes::LayerTimes(const TrainingOptions& layout, bool splits, const TrainingCluster& cluster,
                       const TrainingSystem& system, std::int64_t ranks, CollectiveCosts& costs)
    : layout_(layout),
      cluster_(cluster),
      system_(system),
      ranks_(ranks),
      costs_(costs),
      tokens_(layout.micro_batch * layout.division().rows(layout.model.sequence)),
      cost_(decoder_cost(layout.model, layout.tensor_parallel(), layout.recompute,
                         {.count = tokens_, .dtype = layout.sharding.dtype, .splits = splits}, layout.adapters)) {}

// The product for a weight's gradient adds to it, and reads and writes it in the gradient's type; where a pass of its own
// adds it up, that comes on top. (That a step's first product only writes it is left out.)
double LayerTimes::seconds(const Product& product) const {
  const auto m = static_cast<double>(product.m), n = static_cast<double>(product.n), k = static_cast<double>(product.k);
  const DType dtype = layout_.sharding.dtype;
  if (!product.adds_gradient) return cluster_.product_seconds(dtype, m, n, k);
  const auto gradient = static_cast<double>(size_of(layout_.sharding.gradients()));
  const double seconds =
      cluster_.product_seconds(dtype, m, n, k, 1, m * n * (2 * gradient - static_cast<double>(size_of(dtype))));
  return system_.accumulate_bytes > 0 ? seconds + cluster_.pass_seconds(m * n * system_.accumulate_bytes) : seconds;
}

// Links are described as they are when all ranks communicate. On shared cores the schedule's time counts ranks that wait for
// a turn.
double LayerTimes::exposed(const Exchange& exchange) const {
  const double takes = collective_seconds(costs_, exchange.kind, exchange.elements, exchange.dtype,
                                          {layout_.mesh[Axis::tensor], 1}, cluster_.narrow_sums) /
                       cluster_.turns(ranks_);
  switch (exchange.hidden) {
    case Exchange::Hidden::not_at_all: return takes;
    case Exchange::Hidden::in_chunks: {
      if (!system_.overlaps_products) return takes;
      const double part = (overlap_chunks - 1) / overlap_chunks;
      return takes / overlap_chunks + std::max(0.0, part * (takes - seconds(exchange.product)));
    }
    case Exchange::Hidden::beside: break;
  }
  return system_.overlaps_weights ? std::max(0.0, takes - seconds(exchange.product)) : takes;
}

PassTime LayerTimes::time(const PassCost& pass) const {
  PassTime time{.computing = cluster_.pass_seconds(pass.bytes, pass.kernels)};
  for (const Product& product : pass.products) time.computing += seconds(product);
  for (const Exchange& exchange : pass.exchanges) time.tensor += exposed(exchange);
  return time;
}

PartTime LayerTimes::scores_in_memory() const {
  const MeshShape& mesh = layout_.mesh;
  require(mesh[Axis::ring] == 1 && mesh[Axis::ulysses] == 1,
          "Attention that writes its scores cannot be divided over {} ring and {} ulysses ranks; leave both at 1.",
          mesh[Axis::ring], mesh[Axis::ulysses]);
  const auto sequence = static_cast<double>(layout_.model.sequence);
  const auto head = static_cast<double>(cost_.block.attention.front().head_size);
  const double batch = static_cast<double>(layout_.micro_batch * layout_.model.heads) / mesh[Axis::tensor];
  const DType dtype = layout_.sharding.dtype;
  const double scores = cluster_.product_seconds(dtype, sequence, sequence, head, batch);
  const double result = cluster_.product_seconds(dtype, sequence, head, sequence, batch);
  return {.forward = {.computing = scores + result}, .input = {.computing = scores + 3 * result}};
}

PartTime LayerTimes::attention(const AttendingHeads& heads) const {
  if (system_.writes_scores) return scores_in_memory();
  const DividedAttention attention = divided_attention(layout_, heads);
  AttentionMachine machine{{cluster_.links, static_cast<int>(ranks_)}, cluster_.attention_flops};
  const AttentionCost cost = attention_cost(attention, &machine);
  PartTime time;
  time.forward.computing = cost.forward.computing + cluster_.launch_seconds;
  time.input.computing = cost.backward.computing + cluster_.launch_seconds;
  if (layout_.mesh[Axis::ring] * layout_.mesh[Axis::ulysses] == 1) return time;
  machine.flops_per_second = std::numeric_limits<double>::infinity();  // nothing to run beside: all messages are exposed
  const AttentionCost messages = system_.overlaps_attention ? cost : attention_cost(attention, &machine);
  const bool is_ring = layout_.mesh[Axis::ring] > 1;
  (is_ring ? time.forward.ring : time.forward.ulysses) = messages.forward.exposed();
  (is_ring ? time.input.ring : time.input.ulysses) = messages.backward.exposed();
  return time;
}

PassCost LayerTimes::with(PassCost pass, const BlockTraffic& traffic) const {
  const auto tokens = static_cast<double>(tokens_), sequence = static_cast<double>(layout_.model.sequence);
  const auto own = static_cast<double>(layout_.tensor_parallel().own_rows(tokens_).count);
  const double ranks = layout_.mesh[Axis::tensor];
  const double scores = static_cast<double>(layout_.micro_batch * layout_.model.heads) / ranks * sequence * sequence;
  const auto hidden = static_cast<double>(layout_.model.hidden);
  const double elements = traffic.rows * own * hidden + traffic.wide * tokens * hidden / ranks + traffic.scores * scores;
  pass.bytes = elements * static_cast<double>(size_of(layout_.sharding.dtype));
  pass.kernels = traffic.kernels;
  return pass;
}

LayerCost LayerTimes::of_system(LayerCost block) const {
  const Recompute level = layout_.recompute.level;
  if (system_.writes_scores) {
    block.forward = with(block.forward, system_.forward);
    block.input = with(block.input, system_.backward);
    block.weight = with(block.weight, {});
    if (level == Recompute::full) block.again = with(block.again, system_.forward);
    if (level == Recompute::selective) block.again = with(block.again, system_.attention);
  }
  if (level == Recompute::full && system_.recomputes_whole_blocks) block.again = block.forward;
  return block;
}

PartTime LayerTimes::block() const {
  const LayerCost cost = of_system(cost_.block);
  PartTime block = time_of(cost);
  block.input = block.input + time(cost.again);
  const Recompute level = layout_.recompute.level;
  const bool attends_again = level == Recompute::full || (level == Recompute::selective && system_.writes_scores);
  for (const AttendingHeads& heads : cost.attention) {
    const PartTime attention = this->attention(heads);
    block = block + attention;
    if (attends_again) block.input = block.input + attention.forward;
  }
  return block;
}

PartTime LayerTimes::head() const {
  LayerCost loss = cost_.loss;
  if (system_.loss_bytes > 0) {
    const Product& logits = cost_.head.forward.products.front();
    const double bytes = static_cast<double>(logits.m * logits.n) * system_.loss_bytes;
    loss.forward.bytes = bytes / 3;
    loss.input.bytes = bytes * 2 / 3;
  }
  return time_of(cost_.head) + time_of(loss);
}

}  // namespace stretto
