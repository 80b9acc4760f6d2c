#pragma once
#include <functional>
#include <memory>

#include "microbatches.hpp"
#include "sequence_division.hpp"
#include "stretto/layers/loss_scale.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/layers/training_layout.hpp"

namespace gpt {

struct TrainerOptions {
  ModelShape model;
  stretto::ShardedParameters::Options sharding;  // types, ZeRO, and how the parameters' traffic overlaps
  std::int64_t micro_batch = 4;                  // sequences that a rank computes at a time
  std::int64_t global_batch = 8;                 // sequences of a step, over all data-parallel ranks and microbatches
  stretto::AdamWOptimizer::Options adamw;
  stretto::LossScale::Options loss_scale;  // with f16
  stretto::RecomputeOptions recompute;
  SequenceOptions sequence;
  stretto::StageDivision pipeline;
  bool saves_in_background = false;  // checkpoints; plans of memory count the copy that is being written
  double clip_norm = 1.0;            // 0: no clipping
  std::uint64_t seed = 1;

  stretto::TrainingLayout layout(const stretto::MeshShape& mesh) const;
  // Throws Error(invalid_argument) that names the sizes that do not fit together. Returns the schedule, which takes long to
  // make, or to read from its file, again.
  stretto::Schedule check(const stretto::MeshShape& mesh) const;
  // The first is for plans; the second is for layers that communicate in the mesh's group and on the stream.
  stretto::TensorParallel tensor_parallel(const stretto::MeshShape& mesh) const;
  stretto::TensorParallel tensor_parallel(const stretto::Mesh& mesh, const stretto::Stream& stream) const;
};

// Writes the sequence of slot s of a step, 0 <= s < global_batch, which must not depend on the layout: `sequence` tokens,
// and for each the token that follows it.
using FillSlot = std::function<void(std::int64_t slot, std::int32_t* tokens, std::int32_t* targets)>;

struct StepResult {
  double loss = 0;           // mean over all tokens of the step
  double gradient_norm = 0;  // before clipping
  double loss_scale = 1;     // of the step's backward
  bool updated = true;       // false: the norm is infinite or NaN, and the step was left out
};

// One rank of data x tensor x pipeline parallel training with gradient accumulation and ZeRO 0 to 3.
class Trainer {
 public:
  Trainer(const stretto::Mesh& mesh, const TrainerOptions& options);

  // Collective.
  StepResult step(const FillSlot& fill, double lr);
  // Computes, communicates and updates like a step whose learning rate is 0, whatever the gradients are; for rehearsals, in
  // which they are meaningless. Training cannot go on afterwards. Collective.
  void rehearse(const FillSlot& fill);
  // Computes the gradients of one step, times the loss scale, without an update; for parity tests. Collective.
  StepResult compute_gradients(const FillSlot& fill);
  // Mean loss over count slots, each computed by one data-parallel rank. Collective.
  double evaluate(const FillSlot& fill, std::int64_t count);
  // This rank's columns of the logits of sequences, on the ranks of the stage that has the head; empty on others. Collective
  // over the ranks of one data-parallel replica, and at ZeRO stage 3 over all.
  stretto::Tensor logits(const Batch& sequences);
  // The logits of the token behind the last one of a sequence of at most shape.sequence tokens, of the whole vocabulary, in
  // f64 in host memory, on the ranks of the stage that has the head; empty on others. Collective likewise.
  stretto::Tensor next_logits(const std::vector<std::int32_t>& tokens);

  const Model& model() const { return *model_; }
  const stretto::Parameters& parameters() const { return parameters_; }
  stretto::ShardedParameters& sharded() { return *sharded_; }
  stretto::AdamWOptimizer& optimizer() { return *optimizer_; }
  stretto::LossScale& loss_scale() { return loss_scale_; }
  stretto::Pipeline& pipeline() { return *pipeline_; }
  const stretto::Mesh& mesh() const { return mesh_; }
  const TrainerOptions& options() const { return options_; }

 private:
  std::vector<Model::Loss> sum_gradients(const FillSlot& fill);
  // Forward and backward of this rank's slots, one microbatch after the other.
  std::vector<Model::Loss> run_microbatches(const Batch& slots);
  std::int64_t slots() const { return options_.global_batch / mesh_.size(stretto::Axis::data); }
  void adapt_errors(const StepResult& result);
  double mean_loss(const std::vector<Model::Loss>& losses) const;  // collective
  // The slots slot_of(0), ..., slot_of(count - 1).
  Batch batch_of(const FillSlot& fill, std::int64_t count, const std::function<std::int64_t(std::int64_t)>& slot_of) const;
  // Sums a value, which the stage with the head has, over the ranks of that stage that have other tokens.
  double sum_over_tokens(double value) const;
  // This rank's tokens of whole sequences of any length that divides.
  Batch own_tokens(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                   std::int64_t length) const;

  stretto::Mesh mesh_;
  TrainerOptions options_;
  stretto::LossScale loss_scale_;
  stretto::Parameters parameters_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<stretto::ShardedParameters> sharded_;
  std::unique_ptr<stretto::AdamWOptimizer> optimizer_;
  std::unique_ptr<stretto::Pipeline> pipeline_;
};

}  // namespace gpt
