#include <fmt/format.h>

#include <algorithm>

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
using stretto::ShardedParameters;
using stretto::Tensor;

namespace {

// Linear layers with AdamW on data-parallel ranks, at ZeRO stage 1: each unit's gradients are summed during backward, each
// rank updates its share, and the values are gathered during the next forward pass.
class DataParallel : public OverlapCase {
 public:
  DataParallel(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes),
        mesh_(world, {{stretto::Axis::data, world.size()}}),
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
    sharded_ = std::make_unique<ShardedParameters>(
        parameters_, mesh_,
        ShardedParameters::Options{.zero = stretto::ZeroStage::optimizer,
                                   .dtype = sizes.dtype,
                                   .unit_bytes = std::max(layer_bytes(), std::size_t{256} << 10),
                                   .overlap = sizes.overlap});
    optimizer_ = std::make_unique<AdamW>(*sharded_, AdamW::Options{});
    DataParallel::reset();
  }

  void step() override {
    sharded_->begin_step();
    for (std::size_t i = 0; i < layers(); ++i) {
      const InUse in_use(*sharded_, *parameters_.used()[i], Pass::forward);
      forward(activations_[i], parameter(i).value, activations_[i + 1]);
    }
    for (std::size_t i = layers(); i-- > 0;) {
      const InUse in_use(*sharded_, *parameters_.used()[i], Pass::backward);
      backward_input(dy_, parameter(i).value, dx_);
      backward_weight(activations_[i], dy_, parameter(i).gradient);
    }
    sharded_->end_microbatch();
    sharded_->finish_sums();
    optimizer_->step(1e-4, 1);
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

  std::vector<Tensor> results() const override { return sharded_->whole_values(); }

 private:
  stretto::Parameter& parameter(std::size_t layer) const { return *parameters_.all()[layer]; }
  std::size_t layers() const { return parameters_.all().size(); }
  std::size_t layer_bytes() const {
    return static_cast<std::size_t>(sizes_.hidden * sizes_.hidden) * size_of(stretto::kernels::accumulator(sizes_.dtype));
  }

  OverlapSizes sizes_;
  stretto::Mesh mesh_;
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
