#include "planning/layout/planned_stage.hpp"

#include <algorithm>

#include "stretto/kernels.hpp"
#include "stretto/overlap/pipeline.hpp"

namespace stretto {
namespace {

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

}  // namespace

PlannedStage::PlannedStage(const TrainingOptions& layout, const Schedule& schedule, const ModelCut& cut)
    : layout_(layout),
      tensor_(layout.tensor_parallel()),
      schedule_(schedule),
      cut_(cut),
      sequence_(layout.division().rows(layout.model.sequence)),
      tokens_(layout.micro_batch * sequence_),
      block_(block_activations(layout.model.block(), layout.micro_batch, sequence_, layout.sharding.dtype, tensor_,
                               layout.recompute)) {
  const std::int64_t token = layout.model.hidden * bytes_of(layout.sharding.dtype);
  const std::int64_t statistic = bytes_of(kernels::accumulator(layout.sharding.dtype));
  const std::int64_t own_tokens = tensor_.own_rows(tokens_).count;
  hidden_ = tokens_ * token;
  number_ = tokens_ * statistic;
  own_hidden_ = own_tokens * token;
  own_number_ = own_tokens * statistic;
  head_input_ = tensor_.keeps_gathered ? hidden_ : own_hidden_;
  const std::int64_t columns = (layout.model.vocabulary + layout.mesh[Axis::tensor] - 1) / layout.mesh[Axis::tensor];
  logits_ = tokens_ * columns * bytes_of(layout.sharding.dtype);
  head_kept_ = own_hidden_ + head_input_ + 2 * own_number_ + logits_;
  const AttentionCost cost = attention_cost(attention());
  (layout.recompute.level == Recompute::full ? block_.backward : block_.kept) += cost.result_again;
  attention_buffers_ = cost.buffers;
}

std::int64_t PlannedStage::kept(int chunk) const { return blocks(chunk) * block_.kept + (is_last(chunk) ? head_kept_ : 0); }

// The head leaves the norm's result and the logits' gradient, the embeddings the gradient of their result.
std::int64_t PlannedStage::later(int chunk) const {
  return blocks(chunk) * block_.later + (is_last(chunk) ? head_input_ + logits_ : 0) + (is_first(chunk) ? own_hidden_ : 0);
}

// A chunk's backward adds this to the memory that it finds in use: at the head a gradient, and the input of a block that is
// gathered ahead; then the gradient of the residual stream and those within the last block, when the head's activations are
// gone.
std::int64_t PlannedStage::backward(int chunk) const {
  const std::int64_t ahead = layout_.recompute.partition ? hidden_ - block_.kept : 0;
  const std::int64_t in_block = own_hidden_ + block_.backward;
  if (!is_last(chunk)) return in_block;
  // Own rows: products for every rank's rows and of every rank, and the gathered input.
  const std::int64_t head = tensor_.has_own_rows() ? (tensor_.keeps_gathered ? 2 : 3) * hidden_ : hidden_;
  return std::max(head + ahead, in_block - head_kept_);
}

std::int64_t PlannedStage::halves(int chunk) const {
  std::int64_t count = 0;
  for (const ActionGroup& group : schedule_.lists[static_cast<std::size_t>(cut_.stage)]) {
    if (group.front().kind == ActionKind::backward_weight && group.front().chunk == chunk) ++count;
  }
  return count;
}

std::int64_t PlannedStage::activation_bytes() const {
  // For the gradients of weights, rows are gathered for one product, and ahead for the next.
  const std::int64_t gathered = tensor_.has_own_rows() && !tensor_.keeps_gathered ? 2 * hidden_ : 0;
  std::int64_t held = 0, most = 0;
  for (const ActionGroup& group : schedule_.lists[static_cast<std::size_t>(cut_.stage)]) {
    const Action& action = group.front();
    if (is_message(action.kind)) continue;
    if (action.kind == ActionKind::forward) held += kept(action.chunk);
    most = std::max(most, held);
    if (action.kind == ActionKind::backward_weight) {
      most = std::max(most, held + gathered);
      held -= later(action.chunk);
    }
    if (action.kind != ActionKind::backward && action.kind != ActionKind::backward_input) continue;
    most = std::max(most, held + backward(action.chunk));
    held -= kept(action.chunk);
    if (action.kind == ActionKind::backward_input) held += later(action.chunk);
    most = std::max(most, held);
  }
  const std::int64_t messages = most_messages(schedule_, cut_.stage) * own_hidden_;
  // Tokens, targets and positions of a step, and of each microbatch three numbers per token that the loss is computed from.
  const std::int64_t slots = layout_.global_batch / layout_.mesh[Axis::data];
  const bool has_head = cut_.stages.back() == cut_.stage;
  return slots * sequence_ * 3 * bytes_of(DType::i32) + (has_head ? microbatches() * 3 * number_ : 0) + messages + most;
}

// With own rows the head gathers its input again for the gradients of weights, and blocks their gradients if these come
// later.
std::int64_t PlannedStage::tensor_parallel_bytes() const {
  const bool gathers_again = tensor_.has_own_rows() && !tensor_.keeps_gathered;
  const BlockExchanges of_block = block_exchanges(tensor_, layout_.recompute);
  std::int64_t whole = 0, numbers = 0;  // tensors of the residual's shape, gathered or reduced and scattered
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
    whole += microbatches() * (of_block.forward + of_block.backward) * blocks(chunk);
    if (gathers_again) whole += 2 * halves(chunk) * blocks(chunk);
    if (is_first(chunk)) whole += microbatches() * 2;
    if (is_last(chunk)) {
      whole += microbatches() * (2 + (gathers_again ? 1 : 0));
      numbers += microbatches() * 2 * 3;  // cross entropy
    }
  }
  return (whole * hidden_ + numbers * number_) * (tensor_.size() - 1) / tensor_.size();
}

std::int64_t PlannedStage::message_bytes() const {
  std::int64_t messages = 0;
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
    for (const int neighbour : {part(chunk) - 1, part(chunk) + 1}) {
      if (neighbour < 0 || neighbour >= schedule_.parts()) continue;
      if (schedule_.stage_of(neighbour) != cut_.stage) ++messages;
    }
  }
  return messages * microbatches() * own_hidden_;
}

// Attention's forward is computed again with full recomputation, and its backward once.
std::int64_t PlannedStage::of_attentions(const AttentionBytes& bytes) const {
  std::int64_t blocks_here = 0;
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) blocks_here += blocks(chunk);
  const std::int64_t forwards = layout_.recompute.level == Recompute::full ? 2 : 1;
  return microbatches() * blocks_here * (forwards * bytes.forward + bytes.backward);
}

DividedAttention PlannedStage::attention() const {
  const TransformerShape block = layout_.model.block();
  return {.batch = layout_.micro_batch,
          .sequence = layout_.model.sequence,
          .hidden = block.heads * block.head_size,
          .heads = block.heads,
          .kv_heads = block.kv_heads,
          .dtype = layout_.sharding.dtype,
          .mask = layout_.mask,
          .division = layout_.division(),
          .tensor = layout_.mesh[Axis::tensor]};
}

std::int64_t PlannedStage::ring_bytes() const { return of_attentions(stretto::ring_bytes(attention(), 0)); }
std::int64_t PlannedStage::ulysses_bytes() const { return of_attentions(stretto::ulysses_bytes(attention())); }

}  // namespace stretto
