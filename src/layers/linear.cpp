#include "stretto/layers/linear.hpp"

#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

// y = x W^T. A weight of several parts is a matrix with its parts below each other.
Shape shape_of_y(const Tensor& x, const Tensor& weight) { return {x.rows(), weight.rows()}; }

Shape shape_of_dx(const Tensor& dy, const Tensor& weight) { return {dy.rows(), weight.columns()}; }
Tensor times(const Tensor& dy, const Tensor& weight, Tensor dx) {
  kernels::gemm(dy, Transpose::no, weight, Transpose::no, dx);
  return dx;
}

void add_weight_gradients(const Tensor& x, const Tensor& dy, const Parameter& weight, const Parameter& bias) {
  kernels::gemm(dy, Transpose::yes, x, Transpose::no, weight.gradient, true);
  kernels::add_column_sums(dy, bias.gradient);
}

}  // namespace

Tensor TensorParallel::tensor_to_sum(Shape shape, DType dtype) const {
  return size() > 1 ? Tensor::symmetric(std::move(shape), dtype) : Tensor(std::move(shape), dtype);
}

void TensorParallel::sum(const Tensor& tensor, const char* tag) const {
  if (size() > 1) group.all_reduce(tensor, ReduceOp::sum, computation(), {.tag = tag});
}

Work TensorParallel::start_sum(const Tensor& tensor, const char* tag) const {
  if (size() == 1) return {};
  return group.all_reduce(tensor, ReduceOp::sum, stream, {.tag = tag});
}

ColumnParallelLinear::ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in,
                                           std::int64_t out, int parts, Initial weight,
                                           const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel) {
  const std::int64_t part = out / parts;
  const auto [first, count] = share_of(part, tensor_parallel.size(), tensor_parallel.rank());
  // A weight of one part has no dimension for parts.
  const auto shape = [&](Shape each) {
    if (parts > 1) each.insert(each.begin(), parts);
    return each;
  };
  const auto begin = [&](Shape each) {
    if (parts > 1) each.insert(each.begin(), 0);
    return each;
  };
  weight_ = &parameters.add({.name = name + ".weight",
                             .global_shape = shape({part, in}),
                             .first = begin({first, 0}),
                             .extents = shape({count, in}),
                             .replicated_over = token_axes,
                             .sum_gradient_over = token_axes,
                             .initial = weight});
  bias_ = &parameters.add({.name = name + ".bias",
                           .global_shape = shape({part}),
                           .first = begin({first}),
                           .extents = shape({count}),
                           .replicated_over = token_axes,
                           .sum_gradient_over = token_axes,
                           .initial = {},
                           .decays = false});
}

Tensor ColumnParallelLinear::forward(const Tensor& x, ParameterUse& use) const {
  const InUse in_use(use, {weight_, bias_}, Pass::forward);
  Tensor y(shape_of_y(x, weight_->value), x.dtype());
  kernels::linear(x, weight_->value, bias_->value, y);
  return y;
}

Tensor ColumnParallelLinear::forward_gelu(const Tensor& x, Tensor& before_gelu, ParameterUse& use) const {
  const InUse in_use(use, {weight_, bias_}, Pass::forward);
  before_gelu = Tensor(shape_of_y(x, weight_->value), x.dtype());
  Tensor y(before_gelu.shape(), x.dtype());
  kernels::linear_gelu(x, weight_->value, bias_->value, before_gelu, y);
  return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use) const {
  Work sum;
  Tensor dx;
  {
    const InUse in_use(use, {weight_, bias_}, Pass::backward);
    dx = times(dy, weight_->value, tensor_parallel_.tensor_to_sum(shape_of_dx(dy, weight_->value), dy.dtype()));
    sum = tensor_parallel_.start_sum(dx, "column-parallel backward");
    add_weight_gradients(x, dy, *weight_, *bias_);
  }
  computation().wait(sum);
  return dx;
}

RowParallelLinear::RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out,
                                     Initial weight, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel) {
  const auto [first, count] = share_of(in, tensor_parallel.size(), tensor_parallel.rank());
  weight_ = &parameters.add({.name = name + ".weight",
                             .global_shape = {out, in},
                             .first = {0, first},
                             .extents = {out, count},
                             .replicated_over = token_axes,
                             .sum_gradient_over = token_axes,
                             .initial = weight});
  // Every tensor-parallel rank sees the whole dy, so the bias's gradient is complete on each.
  bias_ = &parameters.add({.name = name + ".bias",
                           .global_shape = {out},
                           .first = {0},
                           .extents = {out},
                           .replicated_over = token_axes | Axis::tensor,
                           .sum_gradient_over = token_axes,
                           .initial = {},
                           .decays = false});
}

Tensor RowParallelLinear::forward(const Tensor& x, const Tensor& residual, ParameterUse& use) const {
  const InUse in_use(use, {weight_, bias_}, Pass::forward);
  Tensor y = tensor_parallel_.tensor_to_sum(shape_of_y(x, weight_->value), x.dtype());
  if (tensor_parallel_.size() == 1) {
    kernels::linear_add(x, weight_->value, bias_->value, residual, y);
    return y;
  }
  gemm_all_reduce(x, weight_->value, Transpose::yes, y, tensor_parallel_.group, tensor_parallel_.stream,
                  {.tag = "row-parallel forward"});
  kernels::add_bias(y, bias_->value);
  kernels::add(residual, y, y);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use) const {
  const InUse in_use(use, {weight_, bias_}, Pass::backward);
  Tensor dx = times(dy, weight_->value, Tensor(shape_of_dx(dy, weight_->value), dy.dtype()));
  add_weight_gradients(x, dy, *weight_, *bias_);
  return dx;
}

Tensor RowParallelLinear::backward_gelu(const Tensor& x, const Tensor& dy, const Tensor& before_gelu,
                                        ParameterUse& use) const {
  const InUse in_use(use, {weight_, bias_}, Pass::backward);
  Tensor dx(shape_of_dx(dy, weight_->value), dy.dtype());
  kernels::linear_backward_gelu(dy, weight_->value, before_gelu, dx);
  add_weight_gradients(x, dy, *weight_, *bias_);
  return dx;
}

}  // namespace stretto
