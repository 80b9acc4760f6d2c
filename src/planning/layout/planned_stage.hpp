#pragma once
#include <functional>
#include <vector>

#include "stretto/models/decoder_cost.hpp"
#include "stretto/models/training_options.hpp"
#include "stretto/planning/attention_cost.hpp"
#include "stretto/planning/training_memory.hpp"

namespace stretto {

DividedAttention divided_attention(const TrainingOptions& layout, const AttendingHeads& heads);

// The memory and the traffic of the ranks of one pipeline stage in a step, by formula. Without a pipeline there is one
// stage.
class PlannedStage {
 public:
  // The layout and the schedule must outlive the object. For memory alone, a schedule of fewer microbatches will do, as long
  // as the stage has as many under way.
  PlannedStage(const TrainingOptions& layout, const Schedule& schedule, int stage)
      : PlannedStage(layout, schedule, layout.cut(schedule, stage)) {}
  PlannedStage(const TrainingOptions& layout, const Schedule& schedule, const ModelCut& cut);

  const ModelCut& cut() const { return cut_; }
  std::int64_t microbatches() const { return layout_.microbatches(); }
  // The most bytes of activations that a rank holds at a time, messages between stages included.
  std::int64_t activation_bytes() const;
  // The most bytes of messages of attention over divided sequences that a rank holds at a time.
  std::int64_t attention_buffers() const;
  // The bytes that a rank sends in a step to its tensor-parallel group, and to other stages in whole messages. Small sums
  // may take an algorithm that sends more, and a ring sends partial sums of 16 bits in f32.
  std::int64_t tensor_parallel_bytes() const;
  std::int64_t message_bytes() const;
  // The bytes that a rank, the first of its ring, sends for attention over divided sequences.
  std::int64_t ring_bytes() const;
  std::int64_t ulysses_bytes() const;

 private:
  std::int64_t blocks(int chunk) const { return cut_.blocks[static_cast<std::size_t>(part(chunk))]; }
  int part(int chunk) const { return schedule_.part_of(cut_.stage, chunk); }
  bool is_first(int chunk) const { return part(chunk) == 0; }
  bool is_last(int chunk) const { return part(chunk) + 1 == schedule_.parts(); }
  std::int64_t most_batches(const Schedule& repeated) const;
  LayerCost chunk_cost(int chunk) const;  // its bytes alone
  std::int64_t of_attentions(const std::function<AttentionBytes(const DividedAttention&)>& bytes_of) const;  // in a step

  // The microbatches of a step whose backward comes in halves in this chunk.
  std::int64_t halves(int chunk) const;

  const TrainingOptions& layout_;
  TensorParallel tensor_;
  const Schedule& schedule_;
  ModelCut cut_;
  CostedTokens tokens_;
  DecoderCost cost_, splitting_;             // of whole backward passes, and of those in halves
  std::vector<DividedAttention> attention_;  // of a block
  std::int64_t hidden_, own_hidden_;         // bytes of the residual stream: of all rows, and of the first rank's own
};

}  // namespace stretto
