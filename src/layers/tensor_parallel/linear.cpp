#include "stretto/layers/linear.hpp"

#include "layers/tensor_parallel/column_parallel.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

void add_weight_gradient(const Tensor& x, const Tensor& dy, Parameter* weight) {
  if (!weight->trainable) return;
  const bool overwrite = weight->take_unset();
  kernels::gemm(dy, Transpose::yes, x, Transpose::no, weight->gradient, !overwrite);
}

void add_bias_gradient(const Tensor& dy, const Parameter* bias) {
  if (bias != nullptr && bias->trainable) kernels::add_column_sums(dy, bias->gradient);
}

const Tensor& value_of(const Parameter* bias) {
  static const Tensor none;
  return bias != nullptr ? bias->value : none;
}

std::vector<Parameter*> present(std::vector<Parameter*> parameters) {
  std::erase(parameters, nullptr);
  return parameters;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in,
                                           std::int64_t out, int parts, Initial weight,
                                           const TensorParallel& tensor_parallel, bool has_bias)
    : tensor_parallel_(tensor_parallel) {
  // A weight of one part has no dimension for parts.
  const auto add = [&](const char* suffix, Shape shape, const Parameter::Traits& traits) {
    if (parts > 1) shape.insert(shape.begin(), parts);
    return &parameters.add(Parameter::divided(name + suffix, std::move(shape), parts > 1 ? 1 : 0, tensor_parallel.size(),
                                              tensor_parallel.rank(), traits));
  };
  weight_ = add(".weight", {out / parts, in}, {.initial = weight, .overwrites_gradient = true});
  bias_ = has_bias ? add(".bias", {out / parts}, {.decays = false}) : nullptr;
  used_ = &parameters.used_together(present({weight_, bias_}));
}

Tensor ColumnParallelLinear::forward(const Tensor& x, std::int64_t tokens, ParameterUse& use, Tensor* for_backward,
                                     const kernels::Epilogue& epilogue) const {
  const InUse in_use(use, *used_, Pass::forward);
  Tensor y({tokens, weight_->value.rows()}, x.dtype());  // the parts of a weight lie below each other
  if (tensor_parallel_.has_own_rows()) {
    multiply_gathered(x, weight_->value, y, tensor_parallel_, for_backward);
    kernels::finish_linear(y, value_of(bias_), epilogue);
    return y;
  }
  kernels::linear(x, weight_->value, value_of(bias_), y, epilogue);
  if (for_backward != nullptr) *for_backward = x;
  return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const {
  const auto add_gradients = [dy, weight = weight_, bias = bias_](const Tensor& input) {
    add_weight_gradient(input, dy, weight);
    add_bias_gradient(dy, bias);
  };
  return ColumnParallelBackward{tensor_parallel_, weight_, *used_, add_gradients}(x, dy, use, later);
}

RowParallelLinear::RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out,
                                     Initial weight, const TensorParallel& tensor_parallel, bool has_bias)
    : tensor_parallel_(tensor_parallel) {
  weight_ = &parameters.add(Parameter::divided(name + ".weight", {out, in}, 1, tensor_parallel.size(),
                                               tensor_parallel.rank(), {.initial = weight, .overwrites_gradient = true}));
  // Where every tensor-parallel rank has the whole dy, the bias's gradient is complete on each.
  bias_ = !has_bias
              ? nullptr
              : &parameters.add(Parameter::whole(name + ".bias", {out}, tensor_parallel.row_axes(), {.decays = false}));
  used_ = &parameters.used_together(present({weight_, bias_}));
}

Tensor RowParallelLinear::forward(const Tensor& x, const Tensor& residual, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const TensorParallel& parallel = tensor_parallel_;
  Tensor y = parallel.tensor_to_sum({parallel.own_rows(x.rows()).count, weight_->value.rows()}, x.dtype());
  if (parallel.size() == 1) {
    kernels::linear_add(x, weight_->value, value_of(bias_), residual, y);
    return y;
  }
  const ChunkedGemmOptions options{.tag = "row-parallel forward"};
  if (parallel.has_own_rows()) {
    gemm_reduce_scatter(x, parallel.rows_of_ranks(x.rows()), weight_->value, Transpose::yes, y, parallel.group,
                        parallel.stream, options);
  } else {
    gemm_all_reduce(x, weight_->value, Transpose::yes, y, parallel.group, parallel.stream, options);
  }
  kernels::finish_linear(y, value_of(bias_));
  kernels::add(residual, y, y);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                                   const kernels::BackwardEpilogue& epilogue) const {
  const InUse in_use(use, *used_, backward_pass(later));
  const std::int64_t products = epilogue.before ? kernels::products_of(epilogue.activation) : 1;
  const auto result = [&] { return Tensor({x.rows(), products * weight_->value.columns()}, dy.dtype()); };
  if (tensor_parallel_.has_own_rows()) {
    const Tensor product = backward_of_rows(x, dy, later);
    Tensor dx = products > 1 ? result() : product;
    kernels::finish_linear_backward(product, dx, epilogue);
    return dx;
  }
  Tensor dx = result();
  kernels::linear_backward(dy, weight_->value, dx, epilogue);
  add_now_or(later, *used_, [x, dy, weight = weight_, bias = bias_] {
    add_weight_gradient(x, dy, weight);
    add_bias_gradient(dy, bias);
  });
  return dx;
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
    add_bias_gradient(parallel.own_rows(all), bias);
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

LayerCost ColumnParallelLinear::cost(const CostedTokens& tokens, bool activates) const {
  LayerCost cost = column_parallel_cost(tensor_parallel_, *weight_, tokens);
  if (bias_ == nullptr) return cost;
  const auto result = static_cast<double>(tokens.bytes(tokens.count * bias_->elements()));
  cost.parameters += bias_->elements();
  // Behind products in chunks, the bias takes a pass of its own.
  if (tensor_parallel_.has_own_rows() && !activates)
    cost.forward = cost.forward + PassCost{.bytes = 2 * result, .kernels = 1};
  cost.weight = cost.weight + PassCost{.bytes = result, .kernels = 1};
  return cost;
}

// On one rank the residual's addition is part of the product; else it follows the sum, behind the bias.
LayerCost RowParallelLinear::cost(const CostedTokens& tokens) const {
  const std::int64_t in = weight_->extents.back(), out = weight_->extents.front();
  const Product forward{tokens.count, out, in}, input{tokens.count, in, out}, gradient{out, in, tokens.count, true};
  const TensorParallel& parallel = tensor_parallel_;
  const std::int64_t all = tokens.bytes(tokens.count * out);
  const std::int64_t own = tokens.bytes(parallel.own_rows(tokens.count).count * out);
  const bool alone = parallel.size() == 1;
  LayerCost cost;
  cost.parameters = weight_->elements() + (bias_ != nullptr ? bias_->elements() : 0);
  cost.forward = {.products = {forward}, .bytes = static_cast<double>(own) * (alone ? 1 : 5), .kernels = alone ? 0.0 : 2.0};
  cost.input.products = {input};
  if (weight_->trainable) cost.weight.products = {gradient};
  if (bias_ != nullptr) cost.weight = cost.weight + PassCost{.bytes = static_cast<double>(own), .kernels = 1};
  cost.kept = tokens.bytes(tokens.count * in);
  cost.later = cost.kept + (parallel.keeps_gathered ? all : own);
  if (alone) return cost;
  using enum Exchange::Hidden;
  const auto exchange = [&](Collective kind, Exchange::Hidden hidden, const Product& product) {
    return Exchange{kind, tokens.count * out, tokens.dtype, hidden, product};
  };
  if (!parallel.has_own_rows()) {
    cost.forward.exchanges = {exchange(Collective::all_reduce, in_chunks, forward)};
    return cost;
  }
  cost.forward.exchanges = {exchange(Collective::reduce_scatter, in_chunks, forward)};
  cost.input.exchanges = {exchange(Collective::all_gather, in_chunks, input)};
  cost.backward = all;
  if (tokens.splits && !parallel.keeps_gathered) cost.weight.exchanges = {exchange(Collective::all_gather, not_at_all, {})};
  return cost;
}

}  // namespace stretto
