#pragma once
#include <memory>

#include "model.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/overlap/gradient_buckets.hpp"

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
  std::size_t bucket_bytes = std::size_t{4} << 20;

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

// One rank of data x tensor parallel training with gradient accumulation.
class Trainer {
 public:
  Trainer(const stretto::Mesh& mesh, const TrainerOptions& options);

  // Collective.
  StepResult step(const FillSlot& fill, double lr);
  // Gradients of one step without using them: what parity tests compare. step() is this, then the optimizer.
  StepResult compute_gradients(const FillSlot& fill);
  // Mean loss over count slots, each computed by one data-parallel rank. Collective.
  double evaluate(const FillSlot& fill, std::int64_t count) const;

  const Model& model() const { return *model_; }
  const stretto::Mesh& mesh() const { return mesh_; }
  stretto::Parameters& parameters() { return parameters_; }
  stretto::AdamWOptimizer& optimizer() { return *optimizer_; }
  const TrainerOptions& options() const { return options_; }

 private:
  double sum_over_data(double value) const;

  stretto::Mesh mesh_;
  TrainerOptions options_;
  stretto::Parameters parameters_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<stretto::AdamWOptimizer> optimizer_;
  std::unique_ptr<stretto::GradientBuckets> buckets_;
};

}  // namespace gpt
