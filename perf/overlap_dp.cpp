#include "dense_layers.hpp"
#include "overlap_cases.hpp"
#include "stretto/overlap/gradient_buckets.hpp"

namespace perf {

using stretto::Communicator;
using stretto::GradientBuckets;
using stretto::Priority;
using stretto::Stream;
using stretto::Tensor;

namespace {

class DataParallel : public OverlapCase {
 public:
  DataParallel(const Communicator& world, const OverlapSizes& sizes) : sizes_(sizes) {
    const std::int64_t weight = sizes.hidden * sizes.hidden;
    const Tensor all = Tensor::symmetric({sizes.layers * weight}, sizes.dtype);
    all.zero();
    for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
      weights_.push_back(Tensor({sizes.hidden, sizes.hidden}, sizes.dtype));
      activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
      // Backward finishes the last layer first.
      gradients_.push_back(all.view((sizes.layers - 1 - layer) * weight, {sizes.hidden, sizes.hidden}));
    }
    activations_.push_back(Tensor({sizes.rows, sizes.hidden}, sizes.dtype));
    fill_patterned(activations_[0], world.rank(), 1.0 / 8);
    dy_ = Tensor({sizes.rows, sizes.hidden}, sizes.dtype);
    dx_ = Tensor({sizes.rows, sizes.hidden}, sizes.dtype);
    fill_patterned(dy_, 3, 1.0 / 8);
    buckets_ =
        std::make_unique<GradientBuckets>(std::vector<Tensor>(gradients_.rbegin(), gradients_.rend()), world,
                                          sizes.overlap ? Stream("dp", Priority::background) : Stream::inline_(),
                                          GradientBuckets::Options{.bucket_bytes = 1 << 20, .overlap = sizes.overlap});
    DataParallel::reset();
  }

  void step() override {
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      forward(activations_[layer], weights_[layer], activations_[layer + 1]);
    }
    for (std::int64_t layer = sizes_.layers - 1; layer >= 0; --layer) {
      backward_input(dy_, weights_[layer], dx_);
      backward_weight(activations_[layer], dy_, gradients_[layer]);
      buckets_->ready(sizes_.layers - 1 - layer);
    }
    buckets_->finish();
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      stretto::kernels::add(weights_[layer], gradients_[layer], weights_[layer]);
    }
  }

  void reset() override {
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      fill_patterned(weights_[layer], static_cast<int>(layer), 1.0 / 4096);
    }
  }

  std::vector<Tensor> results() const override { return weights_; }

 private:
  OverlapSizes sizes_;
  std::vector<Tensor> weights_, gradients_, activations_;
  Tensor dy_, dx_;
  std::unique_ptr<GradientBuckets> buckets_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_data_parallel(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<DataParallel>(world, sizes);
}

}  // namespace perf
