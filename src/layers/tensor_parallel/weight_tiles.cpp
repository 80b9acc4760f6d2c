#include "layers/tensor_parallel/weight_tiles.hpp"

#include <utility>

#include "core/fail.hpp"
#include "layers/tensor_parallel/own_rows.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

using kernels::Transpose;

WeightTiles::WeightTiles(Parameters& parameters, const Parameter& weight, std::size_t outputs, int tiles)
    : parts_(outputs == 0 ? 1 : weight.extents.front()), width_(weight.extents[outputs] / tiles) {
  require(weight.extents[outputs] % tiles == 0,
          "The {} outputs{} of {} on a rank do not divide into {} tiles; give a divisor.", weight.extents[outputs],
          parts_ > 1 ? " of each part" : "", weight.name, tiles);
  for (int i = 0; i < tiles; ++i) {
    Parameter tile = weight;
    tile.name = fmt::format("{}.tile{}", weight.name, i);
    tile.part_of = weight.name;
    tile.portion = {0, weight.global_shape.front()};
    tile.tiles = tiles;
    tile.first[outputs] += i * width_;
    tile.extents[outputs] = width_;
    tile.matrices = {};
    records_.push_back(&parameters.add(std::move(tile)));
    used_.push_back(&parameters.used_together({records_.back()}));
  }
}

std::int64_t WeightTiles::column(std::size_t tile, std::int64_t part) const {
  return (part * tiles() + static_cast<std::int64_t>(tile)) * width_;
}

void WeightTiles::put(const Tensor& product, std::size_t tile, const Tensor& y) const {
  for (std::int64_t part = 0; part < parts_; ++part) {
    kernels::copy_columns(product, part * width_, y, column(tile, part), width_);
  }
}

void WeightTiles::multiply(const Tensor& x, const Tensor& y, ParameterUse& use) const {
  for (std::size_t tile = 0; tile < records_.size(); ++tile) {
    const InUse in_use(use, *used_[tile], Pass::forward);
    const Tensor its({x.rows(), rows()}, x.dtype());
    kernels::gemm(x, Transpose::no, records_[tile]->value, Transpose::yes, its);
    put(its, tile, y);
  }
}

void WeightTiles::multiply_and_sum(const Tensor& x, const Tensor& y, ParameterUse& use, const TensorParallel& parallel,
                                   const char* tag) const {
  Tensor before;
  Work sum_before;
  const auto put_before = [&](std::size_t tile) {
    computation().wait(sum_before);
    put(before, tile, y);
  };
  for (std::size_t tile = 0; tile < records_.size(); ++tile) {
    const Tensor its = parallel.tensor_to_sum({x.rows(), rows()}, x.dtype());
    {
      const InUse in_use(use, *used_[tile], Pass::forward);
      kernels::gemm(x, Transpose::no, records_[tile]->value, Transpose::yes, its);
    }
    Work sum = parallel.start_sum(its, tag);
    if (tile > 0) put_before(tile - 1);
    before = its;
    sum_before = std::move(sum);
  }
  put_before(records_.size() - 1);
}

// The last tile first: it may still be there from forward.
void WeightTiles::multiply_back(const Tensor& x, const Tensor& dy, const Tensor& dx, ParameterUse& use,
                                WeightGradients* later, const std::function<void()>& behind) const {
  const DType wide = kernels::accumulator(dx.dtype());
  const Tensor sum = dx.dtype() == wide ? dx : Tensor(dx.shape(), wide);
  for (std::size_t tile = records_.size(); tile-- > 0;) {
    const Tensor its({dy.rows(), rows()}, dy.dtype());
    for (std::int64_t part = 0; part < parts_; ++part) {
      kernels::copy_columns(dy, column(tile, part), its, part * width_, width_);
    }
    const InUse in_use(use, *used_[tile], backward_pass(later));
    kernels::gemm(its, Transpose::no, records_[tile]->value, Transpose::no, sum, tile + 1 < records_.size());
    if (tile == 0) {
      if (sum.raw() != dx.raw()) kernels::convert(sum, dx);
      if (behind) behind();
    }
    add_now_or(later, *used_[tile], [x, its, record = records_[tile]] {
      OwnRows(record).add_gradient([&](const Tensor& gradient, bool accumulates) {
        kernels::gemm(its, Transpose::yes, x, Transpose::no, gradient, accumulates);
      });
    });
  }
}

void WeightTiles::add_cost(const CostedTokens& tokens, LayerCost& cost, bool hides) const {
  const std::int64_t in = records_.front()->extents.back();
  const auto copies = static_cast<double>(tokens.bytes(2 * tokens.count * rows() * tiles()));
  const auto kernels = static_cast<double>(tiles() * parts_);
  for (PassCost* const pass : {&cost.forward, &cost.input}) {
    *pass = *pass + PassCost{.bytes = copies, .kernels = kernels};
    for (Exchange& exchange : pass->exchanges) {
      if (!hides) exchange.hidden = Exchange::Hidden::not_at_all;
      if (exchange.hidden == Exchange::Hidden::beside) exchange.product.m /= tiles();
    }
  }
  cost.backward += tokens.bytes(tokens.count * rows());
  if (tokens.accumulator() == tokens.dtype) return;
  const std::int64_t sum = tokens.count * in * tokens.statistic();
  cost.input = cost.input + PassCost{.bytes = static_cast<double>(sum + tokens.bytes(tokens.count * in)), .kernels = 1};
  cost.backward += sum;
}

}  // namespace stretto
