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
  std::int64_t micro_batch = 4;   // sequences a rank computes at a time
  std::int64_t global_batch = 8;  // sequences of a step, over all data-parallel ranks and microbatches
  stretto::AdamWOptimizer::Options adamw;
  double clip_norm = 1.0;  // 0: no clipping
  std::uint64_t seed = 1;
  bool overlap = true;
  std::size_t bucket_bytes = std::size_t{1} << 20;
  // So many buckets, spread over backward, whose parameters are gathered behind the next forward, at most as many as there
  // are; when left out it is measured which are best. Changes no bit of the results.
  std::optional<std::size_t> postponed_buckets;

  // Throws Error(invalid_argument) naming the sizes that do not fit together.
  void check(int data_size, int tensor_size) const;
};

// Sequences of a step: slot s of global_batch, the same whatever the layout. Fills sequence tokens and the tokens that
// follow each.
using FillSlot = std::function<void(std::int64_t slot, std::int32_t* tokens, std::int32_t* targets)>;

struct StepResult {
  double loss = 0;           // mean over all tokens of the step
  double gradient_norm = 0;  // before clipping
};

// One rank of data x tensor parallel training with gradient accumulation. Some buckets of a data-parallel group's gradients
// are summed whole, behind backward; of the others each rank sums its share, updates that share of the parameters, and the
// parameters are gathered behind the next step's forward. All are summed whole in the first step, in which the order of
// backward is learned, and in the three that follow, which are measured to choose which are not.
class Trainer {
 public:
  Trainer(const stretto::Mesh& mesh, const TrainerOptions& options);

  // Collective.
  StepResult step(const FillSlot& fill, double lr);
  // Gradients of one step without using them, complete on every rank: what parity tests compare. Collective.
  StepResult compute_gradients(const FillSlot& fill);
  // Completes on this rank what step() leaves with the ranks that own it: gradients, to look at them; the optimizer's state,
  // for a checkpoint. Collective.
  void gather_gradients();
  void gather_optimizer_state();
  // Mean loss over count slots, each computed by one data-parallel rank. Collective.
  double evaluate(const FillSlot& fill, std::int64_t count) const;

  // These wait for parameters that are still on their way.
  const Model& model() const;
  stretto::Parameters& parameters();
  stretto::AdamWOptimizer& optimizer();
  const stretto::Mesh& mesh() const { return mesh_; }
  const TrainerOptions& options() const { return options_; }
  const stretto::GradientBuckets& buckets() const { return *buckets_; }
  bool is_settled() const { return settled_; }  // all further steps do as this one

 private:
  // One step's gradients, summed; of postponed buckets this rank's share.
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
  std::unique_ptr<stretto::PostponedGather> arriving_;  // parameters
  std::optional<stretto::PostponementChoice> choice_;   // while it is measured what to postpone
  bool settled_ = false;                                // what is postponed
};

}  // namespace gpt
