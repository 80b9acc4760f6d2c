#include "common/fail.hpp"
#include "perf/overlap/dense_layers.hpp"
#include "perf/overlap/overlap_cases.hpp"
#include "stretto/overlap/all_to_all.hpp"

namespace perf {

using stretto::BlockRows;
using stretto::Communicator;
using stretto::Stream;
using stretto::Tensor;

namespace {

// One expert a rank: two linear layers with four times the width between them. Each rank sends equally many rows to every
// expert, and gets them back.
class Experts : public OverlapCase {
 public:
  Experts(const Communicator& world, const OverlapSizes& sizes)
      : sizes_(sizes), world_(world), stream_(sizes.overlap ? Stream("experts") : Stream::inline_()) {
    require(sizes.rows % world.size() == 0, "--rows {} do not divide over {} ranks.", sizes.rows, world.size());
    rows_.assign(world.size(), sizes.rows / world.size());
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      up_.push_back(patterned({4 * sizes.hidden, sizes.hidden}, sizes.dtype, static_cast<int>(i) + world.rank(), 1.0 / 128));
      down_.push_back(patterned({sizes.hidden, 4 * sizes.hidden}, sizes.dtype, static_cast<int>(i) + 7, 1.0 / 128));
    }
    for (std::int64_t i = 0; i <= sizes.layers; ++i)
      x_.push_back(Tensor::symmetric({sizes.rows, sizes.hidden}, sizes.dtype));
    dispatched_ = Tensor::symmetric({sizes.rows, sizes.hidden}, sizes.dtype);
    computed_ = Tensor::symmetric({sizes.rows, sizes.hidden}, sizes.dtype);
    inner_ = Tensor({sizes.rows, 4 * sizes.hidden}, sizes.dtype);
    Experts::reset();
  }

  void step() override {
    for (std::size_t layer = 0; layer < up_.size(); ++layer) {
      all_to_all_then(
          x_[layer], rows_, dispatched_, rows_,
          [&](const BlockRows& block) { forward(block.rows, up_[layer], inner_of(block)); }, world_, stream_);
      compute_then_all_to_all([&](const BlockRows& block) { forward(inner_of(block), down_[layer], block.rows); }, computed_,
                              rows_, x_[layer + 1], rows_, world_, stream_);
    }
  }

  void reset() override {
    for (const Tensor& x : x_) x.zero();  // no rows of earlier steps remain in the buffers
    dispatched_.zero();
    fill_patterned(x_.front(), world_.rank(), 1.0 / 8);
  }
  std::vector<Tensor> results() const override { return {x_.back()}; }

 private:
  // The output of the expert's first layer for these rows.
  Tensor inner_of(const BlockRows& block) const {
    const std::int64_t first = block.rank * rows_[0] + block.first;
    return inner_.view(first * inner_.columns(), {block.rows.rows(), inner_.columns()});
  }

  OverlapSizes sizes_;
  Communicator world_;
  Stream stream_;
  std::vector<std::int64_t> rows_;
  std::vector<Tensor> up_, down_, x_;
  Tensor dispatched_, computed_, inner_;
};

}  // namespace

std::unique_ptr<OverlapCase> make_all_to_all(const Communicator& world, const OverlapSizes& sizes) {
  return std::make_unique<Experts>(world, sizes);
}

}  // namespace perf
