#include "planning/layout/planned_stage.hpp"

#include <algorithm>
#include <optional>

#include "stretto/overlap/pipeline.hpp"

namespace stretto {

DividedAttention divided_attention(const TrainingOptions& layout, const AttendingHeads& heads) {
  return {.batch = layout.micro_batch,
          .sequence = layout.model.sequence,
          .hidden = heads.heads * heads.head_size,
          .heads = heads.heads,
          .kv_heads = heads.kv_heads,
          .dtype = layout.sharding.dtype,
          .mask = layout.attention_mask(),
          .division = layout.division(),
          .tensor = layout.mesh[Axis::tensor]};
}

PlannedStage::PlannedStage(const TrainingOptions& layout, const Schedule& schedule, const ModelCut& cut)
    : layout_(layout),
      tensor_(layout.tensor_parallel()),
      schedule_(schedule),
      cut_(cut),
      tokens_{.count = layout.micro_batch * layout.division().rows(layout.model.sequence),
              .dtype = layout.sharding.dtype,
              .exchanges_heads = layout.mesh[Axis::ulysses] > 1},
      cost_(decoder_cost(layout.model, tensor_, layout.recompute, tokens_, layout.adapters)) {
  CostedTokens splits = tokens_;
  splits.splits = true;
  splitting_ = decoder_cost(layout.model, tensor_, layout.recompute, splits, layout.adapters);
  hidden_ = tokens_.bytes(tokens_.count * layout.model.hidden);
  own_hidden_ = tokens_.bytes(tensor_.own_rows(tokens_.count).count * layout.model.hidden);
  for (const AttendingHeads& heads : cost_.block.attention) attention_.push_back(divided_attention(layout, heads));
}

LayerCost PlannedStage::chunk_cost(int chunk) const {
  const bool is_elsewhere = layout_.recompute.partition || !layout_.recompute.directory.empty();
  const std::int64_t ahead = is_elsewhere ? hidden_ - cost_.block.kept : 0;
  LayerCost blocks = cost_.block;  // alike, so that the last one's backward needs most
  blocks.kept *= this->blocks(chunk);
  blocks.later *= this->blocks(chunk);
  blocks.backward += own_hidden_;  // the gradient of the residual stream
  if (is_first(chunk)) blocks.later += cost_.embeddings.later;
  if (!is_last(chunk)) return blocks;
  LayerCost head = cost_.head;
  head.backward += ahead;  // the input of a block, gathered ahead
  return blocks.before(head);
}

std::int64_t PlannedStage::halves(int chunk) const {
  std::int64_t count = 0;
  for (const ActionGroup& group : schedule_.lists[static_cast<std::size_t>(cut_.stage)]) {
    if (group.front().kind == ActionKind::backward_weight && group.front().chunk == chunk) ++count;
  }
  return count;
}

// The most steps whose tokens a stage has at a time: without a flush it begins the next one before one has ended.
std::int64_t PlannedStage::most_batches(const Schedule& repeated) const {
  if (!is_window(schedule_)) return 1;
  const ActionKind ends = updates_jointly(schedule_) ? ActionKind::sum : ActionKind::update;
  std::int64_t open = 0, most = 0;
  int begun = 0;
  for (const ActionGroup& group : repeated.lists[static_cast<std::size_t>(cut_.stage)]) {
    const Action& action = group.front();
    if (action.kind == ActionKind::forward && action.microbatch / schedule_.all_microbatches() == begun) {
      ++begun;
      most = std::max(most, ++open);
    }
    if (action.kind == ends && (action.microbatch + 1) % schedule_.steps == 0) --open;
  }
  return most;
}

std::int64_t PlannedStage::activation_bytes() const {
  // From an empty pipeline to an empty one.
  const std::optional<Schedule> windows = is_window(schedule_) ? std::optional(repeated(schedule_, 3)) : std::nullopt;
  const Schedule& lists = windows ? *windows : schedule_;
  // For the gradients of weights, rows are gathered for one product, and ahead for the next.
  const std::int64_t gathered = tensor_.has_own_rows() && !tensor_.keeps_gathered ? 2 * hidden_ : 0;
  std::vector<LayerCost> chunks;
  chunks.reserve(static_cast<std::size_t>(schedule_.chunks));
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) chunks.push_back(chunk_cost(chunk));
  std::int64_t held = 0, most = 0;
  for (const ActionGroup& group : lists.lists[static_cast<std::size_t>(cut_.stage)]) {
    const Action& action = group.front();
    if (is_message(action.kind)) continue;
    const LayerCost& chunk = chunks[static_cast<std::size_t>(action.chunk)];
    if (action.kind == ActionKind::forward) held += chunk.kept;
    most = std::max(most, held);
    if (action.kind == ActionKind::backward_weight) {
      most = std::max(most, held + gathered);
      held -= chunk.later;
    }
    if (action.kind != ActionKind::backward && action.kind != ActionKind::backward_input) continue;
    most = std::max(most, held + chunk.backward);
    held -= chunk.kept;
    if (action.kind == ActionKind::backward_input) held += chunk.later;
    most = std::max(most, held);
  }
  const std::int64_t messages = most_messages(schedule_, cut_.stage) * own_hidden_;
  // Tokens, targets and positions of a step, and draws for dropout; and of each microbatch three numbers per token that the
  // loss is computed from.
  const std::int64_t slots = most_batches(lists) * layout_.rank_batch();
  const std::int64_t rows = layout_.division().rows(layout_.model.sequence);
  const bool has_head = cut_.stages.back() == cut_.stage;
  const std::int64_t losses = has_head ? microbatches() * 3 * tokens_.count * tokens_.statistic() : 0;
  const std::int64_t draws =
      layout_.adapters.dropout > 0 ? slots * rows * static_cast<std::int64_t>(size_of(DType::i64)) : 0;
  return slots * rows * 3 * static_cast<std::int64_t>(size_of(DType::i32)) + draws + losses + messages + most;
}

// The exchanges of a microbatch count whole tensors; an all-reduce sends as much as a reduce-scatter and an all-gather.
std::int64_t PlannedStage::tensor_parallel_bytes() const {
  std::int64_t sent = 0;
  const auto add = [&](const LayerCost& cost, std::int64_t times) {
    for (const PassCost* pass : {&cost.forward, &cost.input, &cost.weight, &cost.again}) {
      for (const Exchange& each : pass->exchanges) {
        sent += times * (each.kind == Collective::all_reduce ? 2 : 1) * each.bytes();
      }
    }
  };
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
    const std::int64_t split = halves(chunk);
    for (const auto& [cost, times] : {std::pair{&splitting_, split}, {&cost_, microbatches() - split}}) {
      add(cost->block, times * blocks(chunk));
      if (is_first(chunk)) add(cost->embeddings, times);
      if (!is_last(chunk)) continue;
      add(cost->head, times);
      add(cost->loss, times);
    }
  }
  return sent * (tensor_.size() - 1) / tensor_.size();
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
std::int64_t PlannedStage::of_attentions(const std::function<AttentionBytes(const DividedAttention&)>& bytes_of) const {
  std::int64_t blocks_here = 0;
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) blocks_here += blocks(chunk);
  const std::int64_t forwards = layout_.recompute.level == Recompute::full ? 2 : 1;
  std::int64_t sent = 0;
  for (const DividedAttention& attention : attention_) {
    const AttentionBytes bytes = bytes_of(attention);
    sent += forwards * bytes.forward + bytes.backward;
  }
  return microbatches() * blocks_here * sent;
}

std::int64_t PlannedStage::ring_bytes() const {
  return of_attentions([](const DividedAttention& attention) { return stretto::ring_bytes(attention, 0); });
}
std::int64_t PlannedStage::ulysses_bytes() const { return of_attentions(stretto::ulysses_bytes); }

std::int64_t PlannedStage::attention_buffers() const {
  std::int64_t most = 0;
  for (const DividedAttention& attention : attention_) most = std::max(most, attention_cost(attention).buffers);
  return most;
}

}  // namespace stretto
