#pragma once
#include <memory>
#include <optional>

#include "model.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/overlap/postponed_gather.hpp"
#include "stretto/overlap/postponement.hpp"

namespace gpt {

struct TrainerOptions {
  ModelShape model;
  stretto::DType dtype = stretto::DType::f32;
  std::int64_t micro_batch = 4;   // sequences that a rank computes at a time
  std::int64_t global_batch = 8;  // sequences of a step, over all data-parallel ranks and microbatches
  stretto::AdamWOptimizer::Options adamw;
  double clip_norm = 1.0;  // 0: no clipping
  std::uint64_t seed = 1;
  bool overlap = true;
  std::size_t bucket_bytes = std::size_t{1} << 20;
  // The number of buckets, spread over backward, whose parameters are gathered behind the next forward pass; more than all
  // counts as all. If left out, the trainer measures which buckets are best. Changes no bit of the results.
  std::optional<std::size_t> postponed_buckets;

  // Throws Error(invalid_argument) that names the sizes that do not fit together.
  void check(int data_size, int tensor_size) const;
};

// Writes the sequence of slot s of a step, 0 <= s < global_batch, which must not depend on the layout: `sequence` tokens,
// and for each the token that follows it.
using FillSlot = std::function<void(std::int64_t slot, std::int32_t* tokens, std::int32_t* targets)>;

struct StepResult {
  double loss = 0;           // mean over all tokens of the step
  double gradient_norm = 0;  // before clipping
};

// One rank of data x tensor parallel training with gradient accumulation. Some buckets of a data-parallel group's gradients
// are summed whole, behind backward. The others are postponed: each rank sums its share, updates that share of the
// parameters, and the parameters are gathered behind the next step's forward pass. All buckets are summed whole in the first
// step, which learns the order of backward, and in the next three, which are measured to choose the postponed ones.
class Trainer {
 public:
  Trainer(const stretto::Mesh& mesh, const TrainerOptions& options);

  // Collective.
  StepResult step(const FillSlot& fill, double lr);
  // Computes the gradients of one step without an update, complete on every rank, for parity tests. Collective.
  StepResult compute_gradients(const FillSlot& fill);
  // Gather on every rank the gradients, or the optimizer's state for a checkpoint, of which step() leaves each rank only its
  // share. Collective.
  void gather_gradients();
  void gather_optimizer_state();
  // Mean loss over count slots, each computed by one data-parallel rank. Collective.
  double evaluate(const FillSlot& fill, std::int64_t count) const;

  // These block until parameters in flight have arrived.
  const Model& model() const;
  stretto::Parameters& parameters();
  stretto::AdamWOptimizer& optimizer();
  const stretto::Mesh& mesh() const { return mesh_; }
  const TrainerOptions& options() const { return options_; }
  const stretto::GradientBuckets& buckets() const { return *buckets_; }
  bool is_settled() const { return settled_; }  // all further steps communicate in the same way

 private:
  // Sums one step's gradients; for postponed buckets, this rank's share.
  std::vector<Model::Loss> sum_gradients(const FillSlot& fill);
  double mean_loss(const std::vector<Model::Loss>& losses) const;  // collective
  double norm() const;
  // The slots slot_of(0), ..., slot_of(count - 1).
  Batch batch_of(const FillSlot& fill, std::int64_t count, const std::function<std::int64_t(std::int64_t)>& slot_of) const;
  void gather_shares(const std::vector<stretto::Tensor>& by_gradient, const char* tag) const;
  void postpone(const std::vector<bool>& buckets);
  void settle_postponement();
  std::size_t gradient_of(const stretto::Parameter& parameter) const;
  std::vector<stretto::Tensor> by_gradient(const std::function<stretto::Tensor(std::size_t parameter)>& tensor) const;
  std::vector<stretto::ElementRange> by_parameter(std::vector<stretto::ElementRange> gradients) const;
  double sum_over_data(double value) const;

  stretto::Mesh mesh_;
  TrainerOptions options_;
  stretto::Parameters parameters_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<stretto::AdamWOptimizer> optimizer_;
  std::unique_ptr<stretto::GradientBuckets> buckets_;
  std::unique_ptr<stretto::PostponedGather> arriving_;  // gathers of parameters in flight
  std::optional<stretto::PostponementChoice> choice_;   // while the trainer measures which buckets to postpone
  bool settled_ = false;                                // whether the postponed buckets are chosen
};

}  // namespace gpt
