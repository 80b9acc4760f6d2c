#include "trainer.hpp"

#include "fail.hpp"
#include "stretto/device.hpp"

namespace gpt {

using namespace stretto;

void TrainerOptions::check(int data_size, int tensor_size) const {
  require(
      model.layers >= 1 && model.hidden >= 1 && model.heads >= 1 && model.sequence >= 1 && model.vocabulary >= 1,
      "A model of {} layers, hidden size {}, {} heads, sequence length {} and vocabulary {} is impossible; all must be at "
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

namespace {

// Flags `chosen` of `all`, at equal distances; all of them if there are no more.
std::vector<bool> spread(std::size_t chosen, std::size_t all) {
  std::vector<bool> flags;
  for (std::size_t i = 0; i < all; ++i) flags.push_back(chosen >= all || (i + 1) * chosen / all > i * chosen / all);
  return flags;
}

// Blocks until a GPU has computed the losses, so that it is called after all of them have been enqueued.
double sum_of(const std::vector<Model::Loss>& losses) {
  double sum = 0;
  for (const Model::Loss& each : losses) sum += each.loss();
  return sum;
}

// Seconds of computation() since an earlier point in it. Blocks until a GPU has come here.
double seconds_since(const Work& place) {
  const Work here = computation().enqueue([] {});
  here.wait();
  return here.times().done - place.times().done;
}

}  // namespace

Trainer::Trainer(const Mesh& mesh, const TrainerOptions& options) : mesh_(mesh), options_(options) {
  options.check(mesh.data.size(), mesh.tensor.size());
  // Two streams: a small sum that the next layer waits for must not queue behind a bucket of gradients.
  const TensorParallel tensor_parallel{mesh.tensor,
                                       options.overlap && mesh.tensor.size() > 1 ? Stream("tp") : computation()};
  model_ = std::make_unique<Model>(parameters_, options.model, tensor_parallel);
  parameters_.allocate(options.dtype);
  parameters_.initialise(options.seed);
  optimizer_ = std::make_unique<AdamWOptimizer>(parameters_, options.adamw);

  const bool divided = mesh.data.size() > 1;
  settled_ = !divided;
  if (divided && !options.postponed_buckets) choice_.emplace(parameters_.all().size(), size_of(options.dtype));
  buckets_ = std::make_unique<GradientBuckets>(
      by_gradient([&](std::size_t i) { return parameters_.all()[i]->gradient; }), mesh.data,
      options.overlap && divided ? Stream("dp", Priority::background) : computation(),
      GradientBuckets::Options{.bucket_bytes = options.bucket_bytes, .overlap = options.overlap, .scatter = divided});
  postpone({});
}

// ---- parameters are counted in the order of forward, gradients in that of backward

std::size_t Trainer::gradient_of(const Parameter& parameter) const {
  return parameters_.all().size() - 1 - parameters_.index_of(parameter);
}

std::vector<Tensor> Trainer::by_gradient(const std::function<Tensor(std::size_t)>& tensor) const {
  std::vector<Tensor> result;
  for (std::size_t i = parameters_.all().size(); i-- > 0;) result.push_back(tensor(i));
  return result;
}

std::vector<ElementRange> Trainer::by_parameter(std::vector<ElementRange> gradients) const {
  for (ElementRange& range : gradients) range.tensor = parameters_.all().size() - 1 - range.tensor;
  return gradients;
}

// ---- a step

std::vector<Model::Loss> Trainer::sum_gradients(const FillSlot& fill) {
  const std::int64_t sequence = options_.model.sequence;
  const std::int64_t slots = options_.global_batch / mesh_.data.size();
  const double mean_over = static_cast<double>(options_.global_batch * sequence);
  const Batch all = batch_of(fill, slots, [&](std::int64_t i) { return mesh_.data.rank() * slots + i; });
  const GradientReady ready = [&](const Parameter& parameter) { buckets_->ready(gradient_of(parameter)); };
  const ParametersNeeded needed = [&](const Parameter& parameter) {
    arriving_->wait_for(gradient_of(parameter));
    if (choice_) choice_->needed(gradient_of(parameter));
  };

  parameters_.zero_gradients();
  std::vector<Model::Loss> losses;
  for (std::int64_t done = 0; done < slots; done += options_.micro_batch) {
    // Gradients are complete, and may travel, only when the last microbatch has added its own.
    const bool last = done + options_.micro_batch == slots;
    losses.push_back(
        model_->loss(all.part(done, options_.micro_batch), 1 / mean_over, last ? ready : GradientReady(), needed));
  }
  if (choice_) choice_->computed();
  buckets_->finish();
  return losses;
}

double Trainer::mean_loss(const std::vector<Model::Loss>& losses) const {
  return sum_over_data(sum_of(losses)) / static_cast<double>(options_.global_batch * options_.model.sequence);
}

StepResult Trainer::step(const FillSlot& fill, double lr) {
  if (choice_) choice_->begin_step(*buckets_);
  StepResult result;
  const std::vector<Model::Loss> losses = sum_gradients(fill);
  result.gradient_norm = norm();  // blocks until a GPU is done, so that the loss is there as well
  result.loss = mean_loss(losses);
  const double norm = result.gradient_norm;
  const Work from = choice_ ? computation().enqueue([] {}) : Work();
  optimizer_->begin_step(lr, options_.clip_norm > 0 && norm > options_.clip_norm ? options_.clip_norm / norm : 1.0);
  arriving_->start([&](const std::vector<ElementRange>& share) { optimizer_->update(by_parameter(share)); });
  optimizer_->update(by_parameter(buckets_->complete()));  // while the others are in flight
  if (choice_) choice_->updated(seconds_since(from));
  settle_postponement();
  return result;
}

StepResult Trainer::compute_gradients(const FillSlot& fill) {
  StepResult result;
  result.loss = mean_loss(sum_gradients(fill));
  result.gradient_norm = norm();
  gather_gradients();
  return result;
}

// Computed from shares even if every rank has the whole: its bits must not depend on the postponed buckets.
double Trainer::norm() const { return gradient_norm(parameters_, mesh_, by_parameter(buckets_->shares())); }

double Trainer::evaluate(const FillSlot& fill, std::int64_t count) const {
  const Model& model = this->model();
  const std::int64_t rank = mesh_.data.rank();
  const std::int64_t ranks = mesh_.data.size();
  const std::int64_t own = (count - rank + ranks - 1) / ranks;
  const Batch all = batch_of(fill, own, [&](std::int64_t i) { return rank + i * ranks; });
  std::vector<Model::Loss> losses;
  for (std::int64_t i = 0; i < own; ++i) losses.push_back(model.loss(all.part(i, 1), std::nullopt, {}));
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
  if (mesh_.data.size() > 1) {
    mesh_.data.all_reduce(&value, &value, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "loss"});
  }
  return value;
}

// ---- what is postponed

void Trainer::postpone(const std::vector<bool>& buckets) {
  if (!buckets.empty()) buckets_->set_postponed(buckets);
  arriving_ = std::make_unique<PostponedGather>(
      *buckets_, by_gradient([&](std::size_t i) { return parameters_.all()[i]->value; }), "parameters");
}

void Trainer::settle_postponement() {
  if (settled_) return;
  if (choice_) {
    const auto gradients = by_gradient([&](std::size_t i) { return parameters_.all()[i]->gradient; });
    const auto chosen = choice_->end_step(*buckets_, gradients);
    if (!chosen) return;
    postpone(*chosen);
    choice_.reset();
  } else {
    postpone(spread(*options_.postponed_buckets, buckets_->bucket_count()));
  }
  settled_ = true;
}

void Trainer::gather_shares(const std::vector<Tensor>& by_gradient, const char* tag) const {
  PostponedGather gather(*buckets_, by_gradient, tag);
  gather.start();
  gather.wait();
}

void Trainer::gather_gradients() {
  gather_shares(by_gradient([&](std::size_t i) { return parameters_.all()[i]->gradient; }), "whole gradients");
}

void Trainer::gather_optimizer_state() {
  arriving_->wait();
  const auto& states = optimizer_->states();
  gather_shares(by_gradient([&](std::size_t i) { return states[i].m; }), "checkpoint");
  gather_shares(by_gradient([&](std::size_t i) { return states[i].v; }), "checkpoint");
  const bool own_master = !states.empty() && states.front().master.raw() != parameters_.all().front()->value.raw();
  if (own_master) gather_shares(by_gradient([&](std::size_t i) { return states[i].master; }), "checkpoint");
}

const Model& Trainer::model() const {
  arriving_->wait();
  return *model_;
}
Parameters& Trainer::parameters() {
  arriving_->wait();
  return parameters_;
}
AdamWOptimizer& Trainer::optimizer() {
  arriving_->wait();
  return *optimizer_;
}

}  // namespace gpt
