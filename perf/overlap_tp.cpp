#include <array>
#include <functional>

#include "dense_layers.hpp"
#include "fail.hpp"
#include "overlap_cases.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Stream;
using stretto::Tensor;
using stretto::kernels::Transpose;

namespace {

// Two linear layers, of four times the width between them, divided over the ranks as Megatron-LM does with sequence
// parallelism: each rank has a share of the rows outside and of the columns inside.
class TensorParallelLayers : public OverlapCase {
 public:
  TensorParallelLayers(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes), world_(world), stream_(sizes.overlap ? Stream("tp") : Stream::inline_()) {
    const int ranks = world.size();
    require(sizes.rows % ranks == 0 && 4 * sizes.hidden % ranks == 0,
            "--rows {} and four times --hidden {} do not divide over {} ranks.", sizes.rows, sizes.hidden, ranks);
    rows_.assign(ranks, sizes.rows / ranks);
    const std::int64_t inner = 4 * sizes.hidden / ranks;
    const auto make = [&](std::int64_t rows, std::int64_t columns) {
      return Tensor::symmetric({rows, columns}, sizes.dtype);
    };
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      layers_.push_back({make(inner, sizes.hidden), make(sizes.hidden, inner), make(inner, sizes.hidden),
                         make(sizes.hidden, inner), make(sizes.rows, sizes.hidden), make(sizes.rows, inner)});
      fill_patterned(layers_.back().up, static_cast<int>(i), 1.0 / 128);
      fill_patterned(layers_.back().down, static_cast<int>(i) + 3, 1.0 / 128);
    }
    for (std::int64_t i = 0; i <= sizes.layers; ++i) {
      x_.push_back(make(rows_[0], sizes.hidden));
      dx_.push_back(make(rows_[0], sizes.hidden));
    }
    dy_gathered_ = make(sizes.rows, sizes.hidden);
    for (Tensor& dinner : dinner_) dinner = make(sizes.rows, inner);
    TensorParallelLayers::reset();
  }

  void step() override {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      all_gather_gemm(x_[i], rows_, layer.up, Transpose::yes, layer.inner, layer.gathered, world_, stream_);
      gemm_reduce_scatter(layer.inner, rows_, layer.down, Transpose::yes, x_[i + 1], world_, stream_);
    }
    // Gradients of weights are computed where there is something to hide: one while dx is on its way to its owners, the other
    // while the layer before gathers it. So dinner has two buffers, for what the one and the other of two layers needs.
    std::function<void()> left;
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      const Tensor& dinner = dinner_[i % 2];
      all_gather_gemm(dx_[i + 1], rows_, layer.down, Transpose::no, dinner, dy_gathered_, world_, stream_,
                      {.meanwhile = left});
      gemm_reduce_scatter(dinner, rows_, layer.up, Transpose::no, dx_[i], world_, stream_,
                          {.meanwhile = [&] { backward_weight(layer.inner, dy_gathered_, layer.ddown); }});
      left = [this, i] { backward_weight(layers_[i].gathered, dinner_[i % 2], layers_[i].dup); };
    }
    left();
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
  struct Layer {
    Tensor up, down, dup, ddown;
    Tensor gathered, inner;  // kept for backward
  };
  OverlapSizes sizes_;
  Communicator world_;
  Stream stream_;
  std::vector<std::int64_t> rows_;
  std::vector<Layer> layers_;
  std::vector<Tensor> x_, dx_;
  Tensor dy_gathered_;
  std::array<Tensor, 2> dinner_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_tensor_parallel(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<TensorParallelLayers>(world, sizes);
}

}  // namespace perf
