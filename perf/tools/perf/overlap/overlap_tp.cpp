#include <array>
#include <deque>
#include <functional>

#include "common/fail.hpp"
#include "perf/overlap/dense_layers.hpp"
#include "perf/overlap/overlap_cases.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Stream;
using stretto::Tensor;
using stretto::kernels::Transpose;

namespace {

// Two linear layers with four times the width between them, divided over the ranks as in Megatron-LM with sequence
// parallelism: each rank has a share of the rows outside and a share of the columns inside. A step is two microbatches of
// forward and backward.
//
// A collective takes longer than the product beside it, since a third of all products, the gradients of weights, have no
// collective. These are cut in halves and computed whenever a collective leaves time, those of the first microbatch also
// during the forward pass of the second.
class TensorParallelLayers : public OverlapCase {
 public:
  TensorParallelLayers(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes), world_(world), stream_(sizes.overlap ? Stream("tp") : Stream::inline_()) {
    const int ranks = world.size();
    require(sizes.rows % (2 * ranks) == 0 && 4 * sizes.hidden % ranks == 0,
            "--rows {} do not divide into halves of {} ranks, or four times --hidden {} does not divide over the ranks.",
            sizes.rows, ranks, sizes.hidden);
    rows_.assign(ranks, sizes.rows / ranks);
    const std::int64_t inner = 4 * sizes.hidden / ranks;
    const auto make = [&](std::int64_t rows, std::int64_t columns) {
      return Tensor::symmetric({rows, columns}, sizes.dtype);
    };
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      layers_.push_back(
          {make(inner, sizes.hidden), make(sizes.hidden, inner), make(inner, sizes.hidden), make(sizes.hidden, inner), {}});
      fill_patterned(layers_.back().up, static_cast<int>(i), 1.0 / 128);
      fill_patterned(layers_.back().down, static_cast<int>(i) + 3, 1.0 / 128);
      for (Kept& kept : layers_.back().kept) {
        kept = {make(sizes.rows, sizes.hidden), make(sizes.rows, inner), make(sizes.rows, sizes.hidden),
                make(sizes.rows, inner)};
      }
    }
    for (std::int64_t i = 0; i <= sizes.layers; ++i) {
      x_.push_back(make(rows_[0], sizes.hidden));
      dx_.push_back(make(rows_[0], sizes.hidden));
    }
    TensorParallelLayers::reset();
  }

  void step() override {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      for (std::size_t i = 0; i < layers_.size(); ++i) forward(i, microbatch);
      for (std::size_t i = layers_.size(); i-- > 0;) backward(i, microbatch);
    }
    while (!gradients_.empty()) compute_gradient();
  }

  void reset() override {
    fill_patterned(x_.front(), world_.rank(), 1.0 / 8);
    fill_patterned(dx_.back(), world_.rank() + 5, 1.0 / 8);
  }

  std::vector<Tensor> results() const override {
    std::vector<Tensor> all{x_.back(), dx_.front()};
    for (const Layer& layer : layers_) all.insert(all.end(), {layer.dup, layer.ddown});
    return all;
  }

 private:
  static constexpr int microbatches = 2;
  struct Kept {  // of a microbatch, until the gradients of weights are computed
    Tensor gathered, inner, dgathered, dinner;
  };
  struct Layer {
    Tensor up, down, dup, ddown;
    std::array<Kept, microbatches> kept;
  };

  void forward(std::size_t i, int microbatch) {
    const Layer& layer = layers_[i];
    const Kept& kept = layer.kept[microbatch];
    all_gather_gemm(x_[i], rows_, {layer.up, Transpose::yes}, kept.inner, kept.gathered, world_, stream_, options());
    gemm_reduce_scatter(kept.inner, rows_, {layer.down, Transpose::yes}, x_[i + 1], world_, stream_, options());
  }

  void backward(std::size_t i, int microbatch) {
    const Layer& layer = layers_[i];
    const Kept& kept = layer.kept[microbatch];
    all_gather_gemm(dx_[i + 1], rows_, {layer.down, Transpose::no}, kept.dinner, kept.dgathered, world_, stream_, options());
    leave_gradient(kept.inner, kept.dgathered, layer.ddown, microbatch > 0);
    gemm_reduce_scatter(kept.dinner, rows_, {layer.up, Transpose::no}, dx_[i], world_, stream_, options());
    leave_gradient(kept.gathered, kept.dinner, layer.dup, microbatch > 0);
  }

  stretto::ChunkedGemmOptions options() {
    return {.meanwhile = [this] {
      if (!gradients_.empty()) compute_gradient();
    }};
  }

  void leave_gradient(const Tensor& x, const Tensor& dy, const Tensor& gradient, bool accumulate) {
    const std::int64_t rows = x.rows() / 2;
    for (const std::int64_t first : {std::int64_t{0}, rows}) {
      gradients_.push_back([half_x = x.view(first * x.columns(), {rows, x.columns()}),
                            half_dy = dy.view(first * dy.columns(), {rows, dy.columns()}), gradient,
                            adds = accumulate || first > 0] { backward_weight(half_x, half_dy, gradient, adds); });
    }
  }
  void compute_gradient() {
    gradients_.front()();
    gradients_.pop_front();
  }

  OverlapSizes sizes_;
  Communicator world_;
  Stream stream_;
  std::vector<std::int64_t> rows_;
  std::vector<Layer> layers_;
  std::vector<Tensor> x_, dx_;
  std::deque<std::function<void()>> gradients_;  // of weights, not yet computed
};

}  // namespace

std::unique_ptr<OverlapCase> make_tensor_parallel(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<TensorParallelLayers>(world, sizes);
}

}  // namespace perf
