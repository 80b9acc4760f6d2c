#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "perf/overlap/dense_layers.hpp"
#include "perf/overlap/overlap_cases.hpp"
#include "stretto/layers/adamw.hpp"

namespace perf {

using stretto::AdamW;
using stretto::Communicator;
using stretto::InUse;
using stretto::Parameter;
using stretto::Parameters;
using stretto::Pass;
using stretto::Phase;
using stretto::ShardedParameters;
using stretto::Tensor;

namespace {

// Linear layers with AdamW on data-parallel ranks. Each unit's gradients are summed during backward. If a unit is postponed,
// a rank updates its share, and the parameters are gathered during the next forward pass, as with ZeRO-1; otherwise the
// summed gradients are gathered. All units are postponed unless the planner says otherwise.
class DataParallel : public OverlapCase {
 public:
  DataParallel(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes),
        mesh_(world, {{stretto::Axis::data, world.size()}}),
        clock_(sizes.layers),
        dy_({sizes.rows, sizes.hidden}, sizes.dtype),
        dx_({sizes.rows, sizes.hidden}, sizes.dtype) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      Parameter& weight = parameters_.add(Parameter::whole(fmt::format("{}.weight", i), {sizes.hidden, sizes.hidden},
                                                           stretto::token_axes, {.initial = {0, 0.02}}));
      parameters_.used_together({&weight});
      activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    }
    activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    fill_patterned(activations_.front(), world.rank(), 1.0 / 8);
    fill_patterned(dy_, 3, 1.0 / 8);
    make_units(std::max(layer_bytes(), std::size_t{256} << 10),
               [&] { return std::vector<bool>(sharded_->unit_count(), world.size() == 1); });
    DataParallel::reset();
  }

  void step() override {
    clock_.step();
    sharded_->begin_step();
    for (std::size_t i = 0; i < layers(); ++i) {
      const InUse in_use(*sharded_, *parameters_.used()[i], Pass::forward);
      forward(activations_[i], parameter(i).value, activations_[i + 1]);
      clock_.lap(i, Phase::forward);
    }
    for (std::size_t i = layers(); i-- > 0;) {
      const InUse in_use(*sharded_, *parameters_.used()[i], Pass::backward);
      backward_input(dy_, parameter(i).value, dx_);
      backward_weight(activations_[i], dy_, parameter(i).gradient);
      clock_.lap(i, Phase::backward);
    }
    sharded_->end_microbatch();
    sharded_->finish_sums();
    optimizer_->step(1e-4, 1);
    clock_.lap(0, Phase::update);
  }

  void finish() override { sharded_->wait_for_values(); }

  void reset() override {
    finish();
    sharded_->initialise(1);
    optimizer_->adopt_values();
    for (const auto& state : optimizer_->states()) {
      for (const Tensor& slot : state.slots) slot.zero();
    }
    optimizer_->restore(0);
  }

  LayerClock* clock() override { return &clock_; }
  std::optional<Planned> planned() const override {
    stretto::TransformerStep step;
    step.layers = clock_.per_step();
    // The update was measured as a whole; of postponed units, each rank updates only its share.
    const double whole = step.layers.front().update / updated_share();
    for (stretto::LayerSeconds& layer : step.layers) layer.update = whole / static_cast<double>(layers());
    step.parameters.assign(layers(), sizes_.hidden * sizes_.hidden);
    step.data = {mesh_.world().size(), 1};
    step.parameter_dtype = step.gradient_dtype = sizes_.dtype;
    step.update_behind_all = true;
    // Each unit counts as a layer.
    Planned result{data_parallel_step(step), data_parallel_step(with_a_layer_for_each_unit(step)), {}};
    result.knobs.priorities = true;
    result.knobs.blocking = !sizes_.overlap;
    for (std::size_t i = 0; sizes_.overlap && i < sharded_->unit_count(); ++i) {
      result.knobs.postponed.push_back(!sharded_->traffic().is_whole(i));
    }
    for (const stretto::StepNode& node : result.graph.nodes) {
      if (node.collective) result.knobs.partitions[kind_of(node)] = {stretto::Form::scatter_gather, 1};
    }
    return result;
  }
  void use(const stretto::StepSchedule& schedule) override {
    finish();
    std::vector<bool> by_layer;  // in the order of backward, whether the planner postpones it
    for (const stretto::ScheduledCollective& each : schedule.collectives) {
      by_layer.insert(by_layer.end(), each.nodes.size(), !each.postponed.empty());
    }
    make_units(static_cast<std::size_t>(std::max<std::int64_t>(schedule.knobs.bucket_bytes, 1)), [&] {
      // A unit that belongs to several buckets of the planner follows its first layer.
      std::vector<bool> whole(sharded_->unit_count(), true);
      for (std::size_t i = 0; i < layers(); ++i) {
        const std::size_t unit = sharded_->unit_of(parameter(layers() - 1 - i));
        if (by_layer.at(i)) whole[unit] = false;
      }
      return whole;
    });
  }

  std::vector<Tensor> results() const override { return sharded_->whole_values(); }

 private:
  stretto::Parameter& parameter(std::size_t layer) const { return *parameters_.all()[layer]; }
  std::size_t layers() const { return parameters_.all().size(); }
  std::size_t layer_bytes() const {
    return static_cast<std::size_t>(sizes_.hidden * sizes_.hidden) * size_of(stretto::kernels::accumulator(sizes_.dtype));
  }

  // whole: returns which units are not postponed; called when the units exist.
  void make_units(std::size_t bytes, const std::function<std::vector<bool>()>& whole) {
    optimizer_.reset();
    sharded_.reset();
    sharded_ = std::make_unique<ShardedParameters>(parameters_, mesh_,
                                                   ShardedParameters::Options{.zero = stretto::ZeroStage::none,
                                                                              .dtype = sizes_.dtype,
                                                                              .unit_bytes = bytes,
                                                                              .overlap = sizes_.overlap,
                                                                              .measured_steps = 0});
    sharded_->traffic().set_whole(whole());
    optimizer_ = std::make_unique<AdamW>(*sharded_, AdamW::Options{});
  }
  // The part of the whole update that a rank does.
  double updated_share() const {
    double all = 0;
    double mine = 0;
    for (std::size_t i = 0; i < sharded_->unit_count(); ++i) {
      const auto elements = static_cast<double>(sharded_->unit_elements(i));
      all += elements;
      mine += sharded_->traffic().is_whole(i) ? elements : elements / mesh_.world().size();
    }
    return mine / all;
  }
  stretto::TransformerStep with_a_layer_for_each_unit(stretto::TransformerStep step) const {
    const std::vector<stretto::LayerSeconds> of = std::move(step.layers);
    step.layers.assign(sharded_->unit_count(), {});
    step.parameters.assign(sharded_->unit_count(), 0);
    for (std::size_t i = 0; i < layers(); ++i) {
      const std::size_t unit =
          sharded_->unit_count() - 1 - sharded_->unit_of(parameter(i));  // units begin with the last layer
      stretto::LayerSeconds& sum = step.layers[unit];
      sum = {sum.forward + of[i].forward, sum.backward + of[i].backward, sum.update + of[i].update};
      step.parameters[unit] += sizes_.hidden * sizes_.hidden;
    }
    return step;
  }

  OverlapSizes sizes_;
  stretto::Mesh mesh_;
  LayerClock clock_;
  Parameters parameters_;
  std::vector<Tensor> activations_;
  Tensor dy_, dx_;
  std::unique_ptr<ShardedParameters> sharded_;
  std::unique_ptr<AdamW> optimizer_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_data_parallel(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<DataParallel>(world, sizes);
}

}  // namespace perf
