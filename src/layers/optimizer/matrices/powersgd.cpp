#include "layers/optimizer/matrices/powersgd.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "layers/optimizer/matrices/orthonormal.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

void PowerSGDOptions::check() const {
  require(rank >= 0, "Gradients cannot travel in {} columns; give a rank of 1 or more, or 0 for sums as they are.", rank);
  require(start >= 0, "PowerSGD cannot begin behind {} updates; give 0 or more.", start);
  require(start == 0 || any(), "PowerSGD is to begin behind {} updates, and has no rank; give one, or leave the start out.",
          start);
}

FactoredVector factored(const std::vector<LocalGradients::Piece>& pieces, const Parameters& parameters,
                        const PowerSGDOptions& options) {
  FactoredVector result;
  for (const LocalGradients::Piece& piece : pieces) {
    const Shape& extents = parameters.all()[piece.parameter]->extents;
    const std::int64_t columns = extents.back(), rows = piece.count / std::max<std::int64_t>(1, columns);
    if (extents.size() > 1 && options.factors(rows, columns)) {
      result.matrices.push_back({piece.parameter, piece.first, rows, columns, result.sent, result.factors});
      result.sent += options.rank * rows;
      result.factors += options.rank * columns;
      result.largest = std::max(result.largest, piece.count);
    } else {
      result.whole.push_back({piece.parameter, piece.first, piece.count, result.sent});
      result.sent += piece.count;
    }
  }
  return result;
}

PowerSGD::PowerSGD(ShardedParameters& parameters, const PowerSGDOptions& options)
    : parameters_(parameters), options_(options), ranges_of_(parameters.parameters().all().size()) {
  require(current_device() == Device::cpu, "PowerSGD sums gradients in host memory; leave it out on a GPU.");
  for (const ShardedParameters::Range& range : parameters.ranges()) {
    if (range.gradient) ranges_of_[range.parameter].push_back(range.index);
  }
  for (const LocalGradients& vector : parameters.local_gradients()) {
    Exchange& its = exchanges_.emplace_back();
    if (vector.group.size() == 1) continue;
    its.as = factored(vector.pieces, parameters.parameters(), options);
    if (options.use_error_feedback) {
      its.errors = parameters.errors().state(error_name(vector), Hop::contribution, vector.vector.size());
    }
    if (its.as.matrices.empty()) continue;
    its.q = parameters.errors().state(factor_name(vector), Hop::contribution, its.as.factors);
    for (const FactoredVector::Matrix& matrix : its.as.matrices) {
      const std::string stream = "powersgd " + parameters.parameters().all()[matrix.parameter]->name;
      for (std::int64_t i = 0; i < matrix.columns * options.rank; ++i) {
        its.q.set(matrix.q + i, random_normal(parameters.options().seed, stream, static_cast<std::uint64_t>(i)));
      }
    }
    make_orthonormal(its.q, its.as);
  }
}

void PowerSGD::sum() {
  for (std::size_t i = 0; i < exchanges_.size(); ++i) {
    const LocalGradients& vector = parameters_.local_gradients()[i];
    if (vector.group.size() > 1) {
      sum(vector, exchanges_[i]);
      continue;
    }
    for (const LocalGradients::Piece& piece : vector.pieces) {
      set_gradient(piece.parameter, vector.vector.view(piece.first, {piece.count}));
    }
  }
}

// Leaves in the vector what this rank has left out, in case that an update takes the sum.
void PowerSGD::sum(const LocalGradients& vector, Exchange& exchange) const {
  constexpr auto no = kernels::Transpose::no, yes = kernels::Transpose::yes;
  const auto& [matrices, whole, sent, factors, largest] = exchange.as;
  const std::int64_t r = options_.rank;
  const auto all_reduce = [&](const Tensor& tensor) {
    computation().wait(vector.group.all_reduce(tensor, ReduceOp::sum, computation(), {.tag = "powersgd"}));
  };
  const MemoryScope buffers(MemoryKind::buffers);
  const Tensor delta = vector.vector, first = Tensor::symmetric({sent}, DType::f32);
  const auto delta_of = [&](const FactoredVector::Matrix& its) { return delta.view(its.first, {its.rows, its.columns}); };
  const auto p_of = [&](const FactoredVector::Matrix& its) { return first.view(its.p, {its.rows, r}); };
  const auto q_of = [&](const Tensor& q, const FactoredVector::Matrix& its) { return q.view(its.q, {its.columns, r}); };

  if (exchange.errors) kernels::add(delta, exchange.errors, delta);
  for (const auto& its : matrices) kernels::gemm(delta_of(its), no, q_of(exchange.q, its), no, p_of(its));
  for (const auto& its : whole) first.view(its.at, {its.count}).copy_from(delta.view(its.first, {its.count}));
  all_reduce(first);
  for (const auto& its : whole) {
    set_gradient(its.parameter, first.view(its.at, {its.count}));
    delta.view(its.first, {its.count}).zero();
  }
  exchange.is_summed = true;
  if (matrices.empty()) return;

  for (const auto& its : matrices) stretto::make_orthonormal(p_of(its));
  const Tensor own_q({factors}, DType::f32), q = Tensor::symmetric({factors}, DType::f32);
  for (const auto& its : matrices) kernels::gemm(delta_of(its), yes, p_of(its), no, q_of(own_q, its));
  q.copy_from(own_q);
  all_reduce(q);
  const Tensor product({largest}, DType::f32);
  for (const auto& its : matrices) {
    const Tensor sum = product.view(0, {its.rows, its.columns});
    kernels::gemm(p_of(its), no, q_of(q, its), yes, sum);
    set_gradient(its.parameter, sum.reshaped({sum.size()}));
  }
  kernels::scale(own_q, -1);
  for (const auto& its : matrices) kernels::gemm(p_of(its), no, q_of(own_q, its), yes, delta_of(its), true);
  exchange.next_q = q;
}

void PowerSGD::taken() {
  for (std::size_t i = 0; i < exchanges_.size(); ++i) {
    Exchange& its = exchanges_[i];
    const Tensor q = std::exchange(its.next_q, {});
    if (!std::exchange(its.is_summed, false)) continue;
    if (its.errors) its.errors.copy_from(parameters_.local_gradients()[i].vector);
    if (!q || !options_.warm_start) continue;
    its.q.copy_from(q);
    make_orthonormal(its.q, its.as);
  }
}

// Otherwise the columns of the next P would lie as far apart in size as the squares of the gradient's singular values, and
// f32 would lose the small ones.
void PowerSGD::make_orthonormal(const Tensor& q, const FactoredVector& as) const {
  for (const auto& its : as.matrices) stretto::make_orthonormal(q.view(its.q, {its.columns, options_.rank}));
}

void PowerSGD::set_gradient(std::size_t parameter, const Tensor& whole) const {
  for (const std::size_t i : ranges_of_[parameter]) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    kernels::convert(whole.view(range.first, {range.count}), range.gradient);
  }
}

}  // namespace stretto
