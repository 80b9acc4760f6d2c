#include <algorithm>

#include "common/fail.hpp"
#include "perf/overlap/dense_layers.hpp"
#include "perf/overlap/overlap_cases.hpp"
#include "stretto/overlap/ring_pass.hpp"

namespace perf {

using stretto::Communicator;
using stretto::RingPass;
using stretto::RingSum;
using stretto::Stream;
using stretto::Tensor;
using stretto::kernels::gemm;
using stretto::kernels::Transpose;

namespace {

// A rank's rows are cut into this many parts with a ring pass each: some are in flight while others are used, even if two
// ranks have only one block to exchange.
constexpr int parts = 8;
static_assert(parts % 2 == 0, "backward computes half of the own block first and half last");
// A part is used with this many tiles of queries, one after the other, so that a tile's scores stay in the cache.
constexpr int tiles = 2 * parts;

// Linear attention without softmax, with the products of attention: S = Q K^T, O = S V. The next layer's Q, K and V are x +
// share() O, which stays in range over any number of layers.
class RingAttention : public OverlapCase {
 public:
  RingAttention(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes),
        world_(world),
        sums_world_(world.duplicate("sums")),
        stream_(sizes.overlap ? Stream("blocks") : Stream::inline_()),
        sums_stream_(sizes.overlap ? Stream("sums") : Stream::inline_()),
        scores_({sizes.rows / tiles, sizes.rows / parts}, sizes.dtype),
        dscores_(scores_.shape(), sizes.dtype) {
    require(sizes.rows % tiles == 0, "--rows {} do not divide into {} tiles.", sizes.rows, tiles);
    for (std::int64_t layer = 0; layer <= sizes.layers; ++layer) {
      x_.push_back(Tensor::zeros({sizes.rows, sizes.hidden}, sizes.dtype));
      dx_.push_back(Tensor::zeros({sizes.rows, sizes.hidden}, sizes.dtype));
    }
    RingAttention::reset();
  }

  void step() override {
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) forward_layer(x_[layer], x_[layer + 1]);
    for (std::int64_t layer = sizes_.layers - 1; layer >= 0; --layer) backward_layer(x_[layer], dx_[layer + 1], dx_[layer]);
  }

  void reset() override {
    fill_patterned(x_.front(), world_.rank(), scale());
    fill_patterned(dx_.back(), world_.rank() + 5, scale());
  }

  std::vector<Tensor> results() const override { return {x_.back(), dx_.front()}; }

 private:
  double scale() const { return 1.0 / 8; }
  double share() const { return 1 / (64.0 * static_cast<double>(sizes_.rows * world_.size() * sizes_.hidden)); }

  Tensor share_of_rows(const Tensor& tensor, int i, int shares) const {
    const std::int64_t rows = sizes_.rows / shares;
    return tensor.view(i * rows * sizes_.hidden, {rows, sizes_.hidden});
  }
  Tensor part(const Tensor& tensor, int i) const { return share_of_rows(tensor, i, parts); }
  Tensor tile(const Tensor& tensor, int i) const { return share_of_rows(tensor, i, tiles); }

  // The keys and values of a part of this rank's block.
  std::vector<Tensor> own_block(const Tensor& x, int i) const { return {part(x, i), part(x, i)}; }

  std::vector<RingPass> passes_of(const Tensor& x) const {
    std::vector<RingPass> passes;
    passes.reserve(parts);
    for (int i = 0; i < parts; ++i) passes.emplace_back(own_block(x, i), world_, stream_);
    return passes;
  }
  std::vector<RingSum> sums_of(const Tensor& x) const {
    std::vector<RingSum> sums;
    sums.reserve(parts);
    for (int i = 0; i < parts; ++i) sums.emplace_back(own_block(x, i), sums_world_, sums_stream_);
    return sums;
  }

  // The first call writes to out, the others add to it.
  void attend(const Tensor& x, const std::vector<Tensor>& block, const Tensor& out, bool first) const {
    for (int i = 0; i < tiles; ++i) {
      gemm(tile(x, i), Transpose::no, block[0], Transpose::yes, scores_);
      gemm(scores_, Transpose::no, block[1], Transpose::no, tile(out, i), !first);
    }
  }

  // Uses this rank's own block while the first blocks of others arrive.
  void forward_layer(const Tensor& x, const Tensor& out) const {
    std::vector<RingPass> passes = passes_of(x);
    for (int i = 0; i < parts; ++i) attend(x, own_block(x, i), out, i == 0);
    for (int hop = 1; hop < world_.size(); ++hop) {
      for (RingPass& pass : passes) {
        pass.rotate();
        attend(x, pass.current(), out, false);
      }
    }
    stretto::kernels::scale(out, share());
    stretto::kernels::add(x, out, out);
  }

  // Writes dK and dV of the block. The first call writes dQ to dx, the others add to it.
  void attend_backward(const Tensor& x, const Tensor& dout, const std::vector<Tensor>& block,
                       const std::vector<Tensor>& dblock, const Tensor& dx, bool first) const {
    for (int i = 0; i < tiles; ++i) {
      gemm(tile(x, i), Transpose::no, block[0], Transpose::yes, scores_);
      gemm(scores_, Transpose::yes, tile(dout, i), Transpose::no, dblock[1], i > 0);
      gemm(tile(dout, i), Transpose::no, block[1], Transpose::yes, dscores_);
      gemm(dscores_, Transpose::yes, tile(x, i), Transpose::no, dblock[0], i > 0);
      gemm(dscores_, Transpose::no, block[0], Transpose::no, tile(dx, i), !first);
    }
  }

  // Uses half of the own block while the first blocks of others arrive, and half while the last sums return.
  void backward_layer(const Tensor& x, const Tensor& dout, const Tensor& dx) const {
    std::vector<RingPass> passes = passes_of(x);
    std::vector<RingSum> sums = sums_of(x);
    for (int i = 0; i < parts / 2; ++i) attend_backward(x, dout, own_block(x, i), sums[i].own(), dx, i == 0);
    for (int hop = 1; hop < world_.size(); ++hop) {
      for (int i = 0; i < parts; ++i) {
        passes[i].rotate();
        attend_backward(x, dout, passes[i].current(), sums[i].contribution(), dx, false);
        sums[i].pass();
      }
    }
    for (int i = parts / 2; i < parts; ++i) attend_backward(x, dout, own_block(x, i), sums[i].own(), dx, false);
    for (int i = 0; i < parts; ++i) {
      for (const Tensor& home : sums[i].finish()) stretto::kernels::add(part(dx, i), home, part(dx, i));
    }
    stretto::kernels::scale(dx, share());
    stretto::kernels::add(dout, dx, dx);
  }

  OverlapSizes sizes_;
  Communicator world_, sums_world_;
  Stream stream_, sums_stream_;
  Tensor scores_, dscores_;
  std::vector<Tensor> x_, dx_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_ring_pass(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<RingAttention>(world, sizes);
}

}  // namespace perf
