#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "perf/overlap/dense_layers.hpp"
#include "perf/overlap/overlap_cases.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/overlap/postponed_gather.hpp"
#include "stretto/overlap/postponement.hpp"

namespace perf {

using stretto::AdamWOptimizer;
using stretto::Axis;
using stretto::Communicator;
using stretto::ElementRange;
using stretto::GradientBuckets;
using stretto::Parameters;
using stretto::Phase;
using stretto::PostponedGather;
using stretto::PostponementChoice;
using stretto::Priority;
using stretto::Stream;
using stretto::Tensor;

namespace {

// Linear layers with AdamW, whose gradients are summed in buckets. The first step learns the order of backward. The second
// is measured, to choose the buckets whose parameters are gathered behind the next forward pass.
class DataParallel : public OverlapCase {
 public:
  DataParallel(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes),
        world_(world),
        clock_(sizes.layers),
        choice_(static_cast<std::size_t>(sizes.layers), size_of(sizes.dtype)),
        dy_({sizes.rows, sizes.hidden}, sizes.dtype),
        dx_({sizes.rows, sizes.hidden}, sizes.dtype) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      parameters_.add({.name = fmt::format("{}.weight", i),
                       .global_shape = {sizes.hidden, sizes.hidden},
                       .first = {0, 0},
                       .extents = {sizes.hidden, sizes.hidden},
                       .replicated_over = {Axis::data},
                       .sum_gradient_over = {Axis::data},
                       .initial = {0, 0.02}});
      activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    }
    activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    fill_patterned(activations_.front(), world.rank(), 1.0 / 8);
    fill_patterned(dy_, 3, 1.0 / 8);
    parameters_.allocate(sizes.dtype);
    optimizer_ = std::make_unique<AdamWOptimizer>(parameters_, AdamWOptimizer::Options{});
    const auto layer_bytes = static_cast<std::size_t>(sizes.hidden * sizes.hidden) * size_of(sizes.dtype);
    make_buckets(std::max(layer_bytes, std::size_t{256} << 10), std::max(layer_bytes, std::size_t{128} << 10));
    DataParallel::reset();
  }

  void step() override {
    clock_.step();
    choice_.begin_step(*buckets_);
    for (std::size_t i = 0; i < layers(); ++i) {
      arriving_->wait_for(layers() - 1 - i);
      choice_.needed(layers() - 1 - i);
      forward(activations_[i], parameters_.all()[i]->value, activations_[i + 1]);
      clock_.lap(i, Phase::forward);
    }
    for (std::size_t i = layers(); i-- > 0;) {
      backward_weight(activations_[i], dy_, parameters_.all()[i]->gradient);
      buckets_->ready(layers() - 1 - i);  // early enough for the last sum to be hidden as well
      backward_input(dy_, parameters_.all()[i]->value, dx_);
      clock_.lap(i, Phase::backward);
    }
    choice_.computed();
    buckets_->finish();
    update();
    clock_.lap(0, Phase::update);
    postpone(chosen_buckets());
  }

  int steps_to_settle() const override { return PostponementChoice::steps_to_settle; }
  void finish() override { arriving_->wait(); }

  void reset() override {
    finish();
    parameters_.initialise(1);
    optimizer_->adopt_values();
    for (const auto& state : optimizer_->states()) {
      state.m.zero();
      state.v.zero();
    }
    optimizer_->restore(0);
  }

  LayerClock* clock() override { return &clock_; }
  std::optional<Planned> planned() const override {
    stretto::TransformerStep step;
    step.layers = clock_.per_step();
    // The update was measured as a whole; of postponed buckets, each rank updates only its share.
    const double whole = step.layers.front().update / updated_share();
    for (stretto::LayerSeconds& layer : step.layers) layer.update = whole / static_cast<double>(layers());
    step.parameters.assign(layers(), sizes_.hidden * sizes_.hidden);
    step.data = {world_.size(), 1};
    step.parameter_dtype = step.gradient_dtype = sizes_.dtype;
    step.update_behind_all = true;
    // Sums of gradients and gathers share one stream, so that there are no priorities, and each bucket counts as a layer.
    Planned result{data_parallel_step(step), data_parallel_step(with_a_layer_for_each_bucket(step)), {}};
    result.knobs.blocking = !sizes_.overlap;
    for (std::size_t i = 0; sizes_.overlap && i < buckets_->bucket_count(); ++i) {
      result.knobs.postponed.push_back(buckets_->is_postponed(i));
    }
    for (const stretto::StepNode& node : result.graph.nodes) {
      if (node.collective) result.knobs.partitions[kind_of(node)] = {stretto::Form::scatter_gather, 1};
    }
    return result;
  }
  void use(const stretto::StepSchedule& schedule) override {
    finish();
    planned_.clear();
    for (const stretto::ScheduledCollective& each : schedule.collectives) {
      planned_.insert(planned_.end(), each.nodes.size(), !each.postponed.empty());
    }
    const auto bytes = [](std::int64_t wanted) { return static_cast<std::size_t>(std::max<std::int64_t>(wanted, 1)); };
    const stretto::StepKnobs& knobs = schedule.knobs;
    const std::size_t first = bytes(knobs.first_bucket_bytes > 0 ? knobs.first_bucket_bytes : knobs.bucket_bytes);
    make_buckets(bytes(knobs.bucket_bytes), std::min(first, bytes(knobs.bucket_bytes)));
  }

  std::vector<Tensor> results() const override {
    return backward_order([](const stretto::Parameter& parameter) { return parameter.value; });
  }

 private:
  void make_buckets(std::size_t bytes, std::size_t first_bytes) {
    choice_ = PostponementChoice(layers(), size_of(sizes_.dtype));
    buckets_ = std::make_unique<GradientBuckets>(
        gradients(), world_, sizes_.overlap ? Stream("dp", Priority::background) : Stream::inline_(),
        GradientBuckets::Options{
            .bucket_bytes = bytes, .first_bucket_bytes = first_bytes, .overlap = sizes_.overlap, .scatter = true});
    gather_postponed();
  }
  // The planner's choice, or the measured one. A bucket that belongs to several buckets of the planner follows its first
  // gradient.
  std::optional<std::vector<bool>> chosen_buckets() {
    auto chosen = choice_.end_step(*buckets_, gradients());
    if (!chosen || planned_.empty()) return chosen;
    for (std::size_t i = 0; i < chosen->size(); ++i) (*chosen)[i] = planned_.at(buckets_->members(i).front());
    return chosen;
  }
  // The part of the whole update that a rank does.
  double updated_share() const {
    std::int64_t elements = 0;
    for (const ElementRange& range : buckets_->complete()) elements += range.count;
    double all = 0;
    double mine = static_cast<double>(elements);
    for (std::size_t i = 0; i < buckets_->bucket_count(); ++i) {
      const auto bucket =
          static_cast<double>(buckets_->members(i).size()) * static_cast<double>(sizes_.hidden * sizes_.hidden);
      all += bucket;
      if (buckets_->is_postponed(i)) mine += bucket / world_.size();
    }
    return mine / all;
  }
  stretto::TransformerStep with_a_layer_for_each_bucket(stretto::TransformerStep step) const {
    const std::vector<stretto::LayerSeconds> of = std::move(step.layers);
    step.layers.clear();
    step.parameters.clear();
    for (std::size_t b = buckets_->bucket_count(); b-- > 0;) {
      stretto::LayerSeconds sum;
      for (const std::size_t member : buckets_->members(b)) {
        const stretto::LayerSeconds& layer = of[layers() - 1 - member];
        sum = {sum.forward + layer.forward, sum.backward + layer.backward, sum.update + layer.update};
      }
      step.layers.push_back(sum);
      step.parameters.push_back(static_cast<std::int64_t>(buckets_->members(b).size()) * sizes_.hidden * sizes_.hidden);
    }
    return step;
  }
  std::size_t layers() const { return parameters_.all().size(); }

  template <class Tensor_of>
  std::vector<Tensor> backward_order(Tensor_of tensor_of) const {
    std::vector<Tensor> result;
    for (std::size_t i = layers(); i-- > 0;) result.push_back(tensor_of(*parameters_.all()[i]));
    return result;
  }
  // Gradients are counted in the order of backward, layers of the optimizer in the order of forward.
  std::vector<ElementRange> by_layer(std::vector<ElementRange> ranges) const {
    for (ElementRange& range : ranges) range.tensor = layers() - 1 - range.tensor;
    return ranges;
  }

  void update() {
    const double from = stretto::now_seconds();
    optimizer_->begin_step(1e-4, 1);
    arriving_->start([&](const std::vector<ElementRange>& share) { optimizer_->update(by_layer(share)); });
    optimizer_->update(by_layer(buckets_->complete()));  // while the others are in flight
    choice_.updated(stretto::now_seconds() - from);
  }

  std::vector<Tensor> gradients() const {
    return backward_order([](const stretto::Parameter& parameter) { return parameter.gradient; });
  }
  void postpone(const std::optional<std::vector<bool>>& chosen) {
    if (!chosen) return;
    buckets_->set_postponed(*chosen);
    gather_postponed();
  }
  void gather_postponed() {
    arriving_ = std::make_unique<PostponedGather>(
        *buckets_, backward_order([](const stretto::Parameter& parameter) { return parameter.value; }), "parameters");
  }

  OverlapSizes sizes_;
  Communicator world_;
  LayerClock clock_;
  PostponementChoice choice_;
  std::vector<bool> planned_;  // for each gradient, whether the planner postpones it; empty: the planner was not asked
  Parameters parameters_;
  std::vector<Tensor> activations_;
  Tensor dy_, dx_;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<PostponedGather> arriving_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_data_parallel(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<DataParallel>(world, sizes);
}

}  // namespace perf
