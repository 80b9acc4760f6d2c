#include "trainer.hpp"

#include <algorithm>

#include "fail.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace gpt {

using namespace stretto;

void TrainerOptions::check(const MeshShape& mesh) const {
  require(
      model.layers >= 1 && model.hidden >= 1 && model.heads >= 1 && model.sequence >= 1 && model.vocabulary >= 1,
      "A model of {} layers, hidden size {}, {} heads, sequence length {} and vocabulary {} is impossible; all must be at "
      "least 1.",
      model.layers, model.hidden, model.heads, model.sequence, model.vocabulary);
  require(model.hidden % model.heads == 0, "--hidden-size {} does not divide into --num-attention-heads {}.", model.hidden,
          model.heads);
  require(model.heads % mesh.tensor == 0, "--num-attention-heads {} do not divide over --tp {}.", model.heads, mesh.tensor);
  require(micro_batch >= 1 && global_batch >= 1 && global_batch % micro_batch == 0 &&
              global_batch / micro_batch % mesh.data == 0,
          "--global-batch-size {} does not divide into --micro-batch-size {} on {} data-parallel ranks.", global_batch,
          micro_batch, mesh.data);
  require(mesh.ulysses == 1 && mesh.ring == 1 && mesh.pipeline == 1,
          "This model divides over data and tensor only, not over {} (ulysses) x {} (ring) x {} (pipeline) ranks.",
          mesh.ulysses, mesh.ring, mesh.pipeline);
  sharding.check(mesh);
  loss_scale.check();
  recompute.check(mesh.tensor);
}

namespace {

// Blocks until a GPU has computed the losses, so that it is called after all of them have been enqueued.
double sum_of(const std::vector<Model::Loss>& losses) {
  double sum = 0;
  for (const Model::Loss& each : losses) sum += each.loss();
  return sum;
}

}  // namespace

Trainer::Trainer(const Mesh& mesh, const TrainerOptions& options)
    : mesh_(mesh),
      options_(options),
      loss_scale_(options.sharding.dtype == DType::f16 ? LossScale(options.loss_scale) : LossScale()) {
  options.check(mesh.shape());
  // A stream of its own: a small sum that the next layer waits for must not queue behind a unit of gradients.
  const bool overlaps = options.sharding.overlap && mesh.size(Axis::tensor) > 1;
  const TensorParallel tensor_parallel{mesh.over(Axis::tensor), overlaps ? Stream("tp") : computation()};
  model_ = std::make_unique<Model>(parameters_, options.model, tensor_parallel, options.recompute);
  options_.sharding.seed = options.seed;
  sharded_ = std::make_unique<ShardedParameters>(parameters_, mesh_, options_.sharding);
  sharded_->initialise(options.seed);
  optimizer_ = std::make_unique<AdamWOptimizer>(*sharded_, options.adamw);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(slots() * options.model.sequence));
  sharded_->learn([&] { run_microbatches(Batch::of(tokens, tokens, options.model.sequence)); });
}

std::vector<Model::Loss> Trainer::run_microbatches(const Batch& slots) {
  const double mean_over = static_cast<double>(options_.global_batch * options_.model.sequence);
  std::vector<Model::Loss> losses;
  for (std::int64_t done = 0; done < slots.sequences; done += options_.micro_batch) {
    losses.push_back(model_->loss(slots.part(done, options_.micro_batch), loss_scale_.value() / mean_over, *sharded_));
    sharded_->end_microbatch();
  }
  return losses;
}

std::vector<Model::Loss> Trainer::sum_gradients(const FillSlot& fill) {
  const Batch batch = batch_of(fill, slots(), [&](std::int64_t i) { return mesh_.rank(Axis::data) * slots() + i; });
  sharded_->begin_step();
  std::vector<Model::Loss> losses = run_microbatches(batch);
  sharded_->finish_sums();
  return losses;
}

double Trainer::mean_loss(const std::vector<Model::Loss>& losses) const {
  return sum_over_data(sum_of(losses)) / static_cast<double>(options_.global_batch * options_.model.sequence);
}

StepResult Trainer::step(const FillSlot& fill, double lr) {
  StepResult result = compute_gradients(fill);
  const double norm = result.gradient_norm;
  const double clip = options_.clip_norm > 0 && norm > options_.clip_norm ? options_.clip_norm / norm : 1.0;
  result.updated = loss_scale_.update(norm);
  adapt_errors(result);
  if (result.updated) optimizer_->step(lr, clip / result.loss_scale);
  return result;
}

void Trainer::rehearse(const FillSlot& fill) {
  compute_gradients(fill);
  optimizer_->step(0, 1);
}

// The errors of quantized gradients are kept at the scale of the gradients. After an overflow they are no numbers.
void Trainer::adapt_errors(const StepResult& result) {
  ErrorFeedback& errors = sharded_->errors();
  if (!result.updated) return errors.clear();
  if (loss_scale_.value() == result.loss_scale) return;
  for (const ErrorFeedback::Entry& entry : errors.entries()) {
    kernels::scale(entry.values, loss_scale_.value() / result.loss_scale);
  }
}

StepResult Trainer::compute_gradients(const FillSlot& fill) {
  StepResult result;
  const std::vector<Model::Loss> losses = sum_gradients(fill);
  result.loss_scale = loss_scale_.value();
  // Blocks until a GPU is done, so that the loss is there as well.
  result.gradient_norm = gradient_norm(*sharded_) / result.loss_scale;
  result.loss = mean_loss(losses);
  return result;
}

// Ranks that have a slot less than others compute their last one again, because they must make the same uses.
double Trainer::evaluate(const FillSlot& fill, std::int64_t count) {
  const std::int64_t rank = mesh_.rank(Axis::data);
  const std::int64_t ranks = mesh_.size(Axis::data);
  const std::int64_t rounds = (count + ranks - 1) / ranks;
  const auto slot_of = [&](std::int64_t i) { return std::min(rank + i * ranks, count - 1); };
  const Batch all = batch_of(fill, rounds, slot_of);
  std::vector<Model::Loss> losses;
  for (std::int64_t i = 0; i < rounds; ++i) {
    const Model::Loss loss = model_->loss(all.part(i, 1), std::nullopt, *sharded_);
    if (rank + i * ranks < count) losses.push_back(loss);
  }
  return sum_over_data(sum_of(losses)) / static_cast<double>(count * options_.model.sequence);
}

Batch Trainer::batch_of(const FillSlot& fill, std::int64_t count,
                        const std::function<std::int64_t(std::int64_t)>& slot_of) const {
  const auto sequence = static_cast<std::size_t>(options_.model.sequence);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count) * sequence);
  std::vector<std::int32_t> targets(tokens.size());
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    fill(slot_of(static_cast<std::int64_t>(i)), &tokens[i * sequence], &targets[i * sequence]);
  }
  return Batch::of(tokens, targets, options_.model.sequence);
}

double Trainer::sum_over_data(double value) const {
  if (mesh_.size(Axis::data) > 1) {
    mesh_.over(token_axes).all_reduce(&value, &value, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "loss"});
  }
  return value;
}

}  // namespace gpt
