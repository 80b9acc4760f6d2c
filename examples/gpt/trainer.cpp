#include "trainer.hpp"

#include "fail.hpp"

namespace gpt {

using namespace stretto;

void TrainerOptions::check(int data_size, int tensor_size) const {
  require(model.layers >= 1 && model.hidden >= 1 && model.heads >= 1 && model.sequence >= 1 && model.vocabulary >= 1,
          "A model of {} layers, hidden size {}, {} heads, sequence length {} and vocabulary {} is none; all must be at "
          "least 1.",
          model.layers, model.hidden, model.heads, model.sequence, model.vocabulary);
  require(model.hidden % model.heads == 0, "--hidden-size {} does not divide into --num-attention-heads {}.", model.hidden,
          model.heads);
  require(model.heads % tensor_size == 0, "--num-attention-heads {} do not divide over --tp {}.", model.heads, tensor_size);
  require(micro_batch >= 1 && global_batch >= 1 && global_batch % micro_batch == 0 &&
              global_batch / micro_batch % data_size == 0,
          "--global-batch-size {} does not divide into --micro-batch-size {} on {} data-parallel ranks.", global_batch,
          micro_batch, data_size);
}

Trainer::Trainer(const Mesh& mesh, const TrainerOptions& options) : mesh_(mesh), options_(options) {
  options.check(mesh.data.size(), mesh.tensor.size());
  // Two streams: a small sum that the next layer waits for must not queue behind a bucket of gradients.
  const TensorParallel tensor_parallel{mesh.tensor,
                                       options.overlap && mesh.tensor.size() > 1 ? Stream("tp") : Stream::inline_()};
  model_ = std::make_unique<Model>(parameters_, options.model, tensor_parallel);
  parameters_.allocate(options.dtype);
  parameters_.initialise(options.seed);
  optimizer_ = std::make_unique<AdamWOptimizer>(parameters_, options.adamw);

  std::vector<Tensor> gradients;  // in the order of backward
  for (std::size_t i = parameters_.all().size(); i-- > 0;) gradients.push_back(parameters_.all()[i]->gradient);
  const bool in_background = options.overlap && mesh.data.size() > 1;
  buckets_ =
      std::make_unique<GradientBuckets>(std::move(gradients), mesh.data, in_background ? Stream("dp") : Stream::inline_(),
                                        GradientBuckets::Options{options.bucket_bytes, options.overlap});
}

StepResult Trainer::compute_gradients(const FillSlot& fill) {
  const std::int64_t sequence = options_.model.sequence;
  const std::int64_t slots = options_.global_batch / mesh_.data.size();
  const std::int64_t tokens = options_.micro_batch * sequence;
  const double mean_over = static_cast<double>(options_.global_batch * sequence);
  std::vector<std::int32_t> inputs(tokens);
  std::vector<std::int32_t> targets(tokens);
  const GradientReady ready = [&](const Parameter& parameter) {
    buckets_->ready(parameters_.all().size() - 1 - parameters_.index_of(parameter));
  };

  parameters_.zero_gradients();
  double loss = 0;
  for (std::int64_t done = 0; done < slots; done += options_.micro_batch) {
    for (std::int64_t i = 0; i < options_.micro_batch; ++i) {
      fill(mesh_.data.rank() * slots + done + i, &inputs[i * sequence], &targets[i * sequence]);
    }
    // Gradients are complete, and may travel, only when the last microbatch has added its own.
    const bool last = done + options_.micro_batch == slots;
    loss += model_->loss(inputs.data(), targets.data(), options_.micro_batch, sequence, 1 / mean_over,
                         last ? ready : GradientReady());
  }
  buckets_->finish();
  return {sum_over_data(loss) / mean_over, gradient_norm(parameters_, mesh_)};
}

StepResult Trainer::step(const FillSlot& fill, double lr) {
  const StepResult result = compute_gradients(fill);
  const double norm = result.gradient_norm;
  optimizer_->step(lr, options_.clip_norm > 0 && norm > options_.clip_norm ? options_.clip_norm / norm : 1.0);
  return result;
}

double Trainer::evaluate(const FillSlot& fill, std::int64_t count) const {
  const std::int64_t sequence = options_.model.sequence;
  std::vector<std::int32_t> inputs(sequence);
  std::vector<std::int32_t> targets(sequence);
  double loss = 0;
  for (std::int64_t slot = mesh_.data.rank(); slot < count; slot += mesh_.data.size()) {
    fill(slot, inputs.data(), targets.data());
    loss += model_->loss(inputs.data(), targets.data(), 1, sequence, std::nullopt, {});
  }
  return sum_over_data(loss) / static_cast<double>(count * sequence);
}

double Trainer::sum_over_data(double value) const {
  if (mesh_.data.size() > 1) {
    mesh_.data.all_reduce(&value, &value, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "loss"});
  }
  return value;
}

}  // namespace gpt
