#include "perf/overlap/dense_layers.hpp"
#include "perf/overlap/overlap_cases.hpp"
#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Pass;
using stretto::Priority;
using stretto::ShardedUnit;
using stretto::Stream;
using stretto::Tensor;
using stretto::UnitTraffic;

namespace {

// ZeRO-3: every rank owns a share of each layer. Layers are gathered before forward and again before backward, and gradients
// are summed into the shares.
class ShardedLayers : public OverlapCase {
 public:
  ShardedLayers(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes),
        world_(world),
        gather_stream_(sizes.overlap ? Stream("gather", Priority::urgent) : Stream::inline_()),
        gradient_stream_(sizes.overlap ? Stream("gradients", Priority::background) : Stream::inline_()),
        dy_({sizes.rows, sizes.hidden}, sizes.dtype),
        dx_({sizes.rows, sizes.hidden}, sizes.dtype) {
    const Communicator gradients = world.duplicate("gradients");
    const ShardedUnit::Options options{.stage = stretto::ZeroStage::values};
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      units_.push_back(std::make_unique<ShardedUnit>(
          world, gradients, std::vector<stretto::Shape>{{sizes.hidden, sizes.hidden}}, sizes.dtype, sizes.dtype, options));
      activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    }
    activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    fill_patterned(activations_[0], world.rank(), 1.0 / 8);
    fill_patterned(dy_, 3, 1.0 / 8);
    std::vector<stretto::UnitStore*> units;
    for (const auto& unit : units_) units.push_back(unit.get());
    traffic_ = std::make_unique<UnitTraffic>(std::move(units), gather_stream_, gradient_stream_,
                                             UnitTraffic::Options{.prefetch = 2, .overlap = sizes.overlap});
    ShardedLayers::reset();
  }

  void step() override {
    traffic_->begin_step();
    for (std::size_t i = 0; i < units_.size(); ++i) {
      traffic_->begin_use(i, Pass::forward);
      forward(activations_[i], units_[i]->values()[0], activations_[i + 1]);
      traffic_->end_use(i);
    }
    for (std::size_t i = units_.size(); i-- > 0;) {
      traffic_->begin_use(i, Pass::backward);
      backward_input(dy_, units_[i]->values()[0], dx_);
      backward_weight(activations_[i], dy_, units_[i]->gradients()[0]);
      traffic_->end_use(i);
    }
    traffic_->end_microbatch();
    traffic_->finish_sums();
    for (std::size_t i = units_.size(); i-- > 0;) {
      stretto::kernels::add(units_[i]->share(), units_[i]->gradient_share(), units_[i]->share());
      traffic_->updated(i);
    }
  }

  void reset() override {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const Tensor whole = patterned({sizes_.hidden * sizes_.hidden}, sizes_.dtype, static_cast<int>(i), 1.0 / 4096);
      const std::int64_t first = world_.rank() * units_[i]->share().size();
      for (const stretto::ElementRange& own : units_[i]->owned()) {
        units_[i]->share().view(0, {own.count}).copy_from(whole.view(first, {own.count}));
      }
      units_[i]->share_changed();
    }
  }

  std::vector<Tensor> results() const override {
    std::vector<Tensor> shares;
    for (const auto& unit : units_) shares.push_back(unit->share());
    return shares;
  }

 private:
  OverlapSizes sizes_;
  Communicator world_;
  Stream gather_stream_, gradient_stream_;
  Tensor dy_, dx_;
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::vector<Tensor> activations_;
  std::unique_ptr<UnitTraffic> traffic_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_zero3(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<ShardedLayers>(world, sizes);
}

}  // namespace perf
