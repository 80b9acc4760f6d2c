#include "stretto/layers/linear.hpp"

#include "layers/tensor_parallel/column_parallel.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

void add_weight_gradient(const Tensor& x, const Tensor& dy, Parameter* weight) {
  const bool overwrite = weight->take_unset();
  kernels::gemm(dy, Transpose::yes, x, Transpose::no, weight->gradient, !overwrite);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in,
                                           std::int64_t out, int parts, Initial weight,
                                           const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel) {
  // A weight of one part has no dimension for parts.
  const auto add = [&](const char* suffix, Shape shape, const Parameter::Traits& traits) {
    if (parts > 1) shape.insert(shape.begin(), parts);
    return &parameters.add(Parameter::divided(name + suffix, std::move(shape), parts > 1 ? 1 : 0, tensor_parallel.size(),
                                              tensor_parallel.rank(), traits));
  };
  weight_ = add(".weight", {out / parts, in}, {.initial = weight, .overwrites_gradient = true});
  bias_ = add(".bias", {out / parts}, {.decays = false});
  used_ = &parameters.used_together({weight_, bias_});
}

Tensor ColumnParallelLinear::forward(const Tensor& x, std::int64_t tokens, ParameterUse& use, Tensor* for_backward) const {
  const InUse in_use(use, *used_, Pass::forward);
  Tensor y({tokens, weight_->value.rows()}, x.dtype());  // the parts of a weight lie below each other
  if (tensor_parallel_.has_own_rows()) {
    multiply_gathered(x, weight_->value, y, tensor_parallel_, for_backward);
    kernels::add_bias(y, bias_->value);
    return y;
  }
  kernels::linear(x, weight_->value, bias_->value, y);
  if (for_backward != nullptr) *for_backward = x;
  return y;
}

Tensor ColumnParallelLinear::forward_gelu(const Tensor& x, std::int64_t tokens, Tensor& before_gelu, ParameterUse& use,
                                          Tensor* for_backward) const {
  const InUse in_use(use, *used_, Pass::forward);
  before_gelu = Tensor({tokens, weight_->value.rows()}, x.dtype());
  Tensor y(before_gelu.shape(), x.dtype());
  if (tensor_parallel_.has_own_rows()) {
    multiply_gathered(x, weight_->value, before_gelu, tensor_parallel_, for_backward);
    kernels::add_bias_gelu(before_gelu, bias_->value, y);
    return y;
  }
  kernels::linear_gelu(x, weight_->value, bias_->value, before_gelu, y);
  if (for_backward != nullptr) *for_backward = x;
  return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const {
  const auto add_gradients = [dy, weight = weight_, bias = bias_](const Tensor& input) {
    add_weight_gradient(input, dy, weight);
    kernels::add_column_sums(dy, bias->gradient);
  };
  return ColumnParallelBackward{tensor_parallel_, weight_, *used_, add_gradients}(x, dy, use, later);
}

RowParallelLinear::RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out,
                                     Initial weight, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel) {
  weight_ = &parameters.add(Parameter::divided(name + ".weight", {out, in}, 1, tensor_parallel.size(),
                                               tensor_parallel.rank(), {.initial = weight, .overwrites_gradient = true}));
  // Where every tensor-parallel rank has the whole dy, the bias's gradient is complete on each.
  bias_ = &parameters.add(Parameter::whole(name + ".bias", {out}, tensor_parallel.row_axes(), {.decays = false}));
  used_ = &parameters.used_together({weight_, bias_});
}

Tensor RowParallelLinear::forward(const Tensor& x, const Tensor& residual, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const TensorParallel& parallel = tensor_parallel_;
  Tensor y = parallel.tensor_to_sum({parallel.own_rows(x.rows()).count, weight_->value.rows()}, x.dtype());
  if (parallel.size() == 1) {
    kernels::linear_add(x, weight_->value, bias_->value, residual, y);
    return y;
  }
  const ChunkedGemmOptions options{.tag = "row-parallel forward"};
  if (parallel.has_own_rows()) {
    gemm_reduce_scatter(x, parallel.rows_of_ranks(x.rows()), weight_->value, Transpose::yes, y, parallel.group,
                        parallel.stream, options);
  } else {
    gemm_all_reduce(x, weight_->value, Transpose::yes, y, parallel.group, parallel.stream, options);
  }
  kernels::add_bias(y, bias_->value);
  kernels::add(residual, y, y);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const {
  const InUse in_use(use, *used_, backward_pass(later));
  if (tensor_parallel_.has_own_rows()) return backward_of_rows(x, dy, later);
  Tensor dx({dy.rows(), weight_->value.columns()}, dy.dtype());
  kernels::gemm(dy, Transpose::no, weight_->value, Transpose::no, dx);
  add_gradients(x, dy, later);
  return dx;
}

Tensor RowParallelLinear::backward_gelu(const Tensor& x, const Tensor& dy, const Tensor& before_gelu, ParameterUse& use,
                                        WeightGradients* later) const {
  const InUse in_use(use, *used_, backward_pass(later));
  if (tensor_parallel_.has_own_rows()) {
    Tensor dx = backward_of_rows(x, dy, later);
    kernels::gelu_backward(before_gelu, dx, dx);
    return dx;
  }
  Tensor dx({dy.rows(), weight_->value.columns()}, dy.dtype());
  kernels::linear_backward_gelu(dy, weight_->value, before_gelu, dx);
  add_gradients(x, dy, later);
  return dx;
}

void RowParallelLinear::add_gradients(const Tensor& x, const Tensor& dy, WeightGradients* later) const {
  add_now_or(later, *used_, [x, dy, weight = weight_, bias = bias_] {
    add_weight_gradient(x, dy, weight);
    kernels::add_column_sums(dy, bias->gradient);
  });
}

// The bias sees own rows only, the weight the rows of all ranks.
Tensor RowParallelLinear::backward_of_rows(const Tensor& x, const Tensor& dy, WeightGradients* later) const {
  const TensorParallel& parallel = tensor_parallel_;
  Tensor dx({x.rows(), weight_->value.columns()}, dy.dtype());
  const Tensor gathered = Tensor::symmetric({x.rows(), dy.columns()}, dy.dtype());
  all_gather_gemm(dy, parallel.rows_of_ranks(x.rows()), weight_->value, Transpose::no, dx, gathered, parallel.group,
                  parallel.stream, {.tag = "row-parallel backward"});
  const auto add = [x, weight = weight_, bias = bias_, parallel](const Tensor& all) {
    add_weight_gradient(x, all, weight);
    kernels::add_column_sums(parallel.own_rows(all), bias->gradient);
  };
  if (later == nullptr) {
    add(gathered);
  } else if (parallel.keeps_gathered) {
    later->add(*used_, [add, gathered] { add(gathered); });
  } else {
    const auto again =
        std::make_shared<DividedTensor>(DividedTensor::of_share(dy, x.rows(), parallel, "row-parallel gradient"));
    later->add(
        *used_, [add, again] { add(again->whole()); }, [again] { again->gather(); });
  }
  return dx;
}

}  // namespace stretto
