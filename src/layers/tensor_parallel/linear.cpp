#include "stretto/layers/linear.hpp"

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "layers/tensor_parallel/column_parallel.hpp"
#include "layers/tensor_parallel/own_rows.hpp"
#include "layers/tensor_parallel/weight_tiles.hpp"
#include "stretto/device.hpp"
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

void add_bias_gradient(const Tensor& dy, const OwnRows& bias) {
  bias.add_gradient([&](const Tensor& gradient, bool accumulates) {
    if (!accumulates) as_kernel("zero", [&] { gradient.zero(); });
    kernels::add_column_sums(dy, gradient);
  });
}

const Tensor& value_of(const Parameter* bias) {
  static const Tensor none;
  return bias != nullptr ? bias->value : none;
}

std::vector<Parameter*> joined(std::vector<Parameter*> parameters, const LinearAdapters* adapters) {
  std::erase(parameters, nullptr);
  if (adapters == nullptr) return parameters;
  const std::vector<Parameter*> others = adapters->parameters();
  parameters.insert(parameters.end(), others.begin(), others.end());
  return parameters;
}

// Null if there are none.
std::shared_ptr<const LinearAdapters> make_adapters(Parameters& parameters, const std::string& name,
                                                    const AdapterSet& adapters, const Parameter& weight,
                                                    const std::vector<NamedParts>& named, const TensorParallel& parallel,
                                                    bool divides_outputs) {
  if (adapters.by_record.empty() && adapters.others.empty()) return nullptr;
  auto result = std::make_shared<const LinearAdapters>(parameters, name, adapters, weight, named, parallel, divides_outputs);
  return result->rank() > 0 ? result : nullptr;
}

LowRank factors_of(const std::shared_ptr<const LinearAdapters>& adapters, const Tensor& draws) {
  return adapters != nullptr ? adapters->factors(draws) : LowRank{};
}
GemmFactor factor_of(const Tensor& weight, Transpose transpose, const LowRank& low) {
  return {weight, transpose, low.b, low.a, low.dropout};
}
GemmFactor forward_factor(const Tensor& weight, const std::shared_ptr<const LinearAdapters>& adapters, const Tensor& draws) {
  const MemoryScope scratch(MemoryKind::other);
  return factor_of(weight, Transpose::yes, factors_of(adapters, draws));
}

// Null without tiles.
std::shared_ptr<const WeightTiles> make_tiles(Parameters& parameters, const Parameter& weight, std::size_t outputs,
                                              const TensorParallel& parallel) {
  require(parallel.tiles >= 1, "{} cannot be cut into {} tiles; give 1 or more.", weight.name, parallel.tiles);
  if (parallel.tiles == 1) return nullptr;
  require(!parallel.divides_rows,
          "{} cannot be multiplied in {} tiles beside sequence parallelism, whose rows travel while the whole weight is "
          "multiplied; leave one of them out.",
          weight.name, parallel.tiles);
  return std::make_shared<const WeightTiles>(parameters, weight, outputs, parallel.tiles);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in,
                                           std::int64_t out, int parts, Initial weight,
                                           const TensorParallel& tensor_parallel, bool has_bias, const AdapterSet& adapters,
                                           const std::vector<NamedParts>& named, const CopiedParts& copied)
    : tensor_parallel_(tensor_parallel) {
  const auto with_parts = [&](Shape shape) {
    if (parts > 1) shape.insert(shape.begin(), parts);
    return shape;
  };
  const auto add = [&](const char* suffix, const Shape& shape, const Parameter::Traits& traits) {
    return std::make_shared<const OwnRows>(parameters, name + suffix, with_parts(shape), parts, copied, traits,
                                           tensor_parallel);
  };
  std::vector<std::int64_t> matrices;  // all parts are one, unless they have names
  matrices.reserve(named.size());
  for (const NamedParts& each : named) matrices.push_back(each.count * (out / parts));
  if (matrices.empty()) matrices.push_back(out);
  const Parameter::Traits traits{.initial = weight, .matrices = matrices, .overwrites_gradient = true};
  const std::size_t outputs = parts > 1 ? 1 : 0;
  const Parameter whole = Parameter::divided(name + ".weight", with_parts({out / parts, in}), outputs,
                                             tensor_parallel.size(), tensor_parallel.rank(), traits);
  require(tensor_parallel.tiles == 1 || !copied.by(tensor_parallel.size()),
          "{} cannot be multiplied in {} tiles on {} tensor-parallel ranks, which do not divide its {} heads of keys and "
          "values; give a divisor, or leave tiles out.",
          whole.name, tensor_parallel.tiles, tensor_parallel.size(), copied.heads);
  tiles_ = make_tiles(parameters, whole, outputs, tensor_parallel);
  weight_ =
      tiles_ != nullptr ? std::make_shared<const OwnRows>(tiles_->records()) : add(".weight", {out / parts, in}, traits);
  bias_ = has_bias ? add(".bias", {out / parts}, {.decays = false}) : std::make_shared<const OwnRows>();
  adapters_ = make_adapters(parameters, name, adapters, tiles_ != nullptr ? whole : *weight_->records().front(), named,
                            tensor_parallel, true);
  std::vector<Parameter*> records = tiles_ != nullptr ? std::vector<Parameter*>() : weight_->records();
  records.insert(records.end(), bias_->records().begin(), bias_->records().end());
  used_ = &parameters.used_together(joined(std::move(records), adapters_.get()));
}

Tensor ColumnParallelLinear::forward(const Tensor& x, std::int64_t tokens, ParameterUse& use, Tensor* for_backward,
                                     const kernels::Epilogue& epilogue, const Tensor& draws) const {
  if (tiles_ != nullptr) {
    if (for_backward != nullptr) *for_backward = x;
    return forward_by_tiles(x, use, epilogue, draws);
  }
  const InUse in_use(use, *used_, Pass::forward);
  Tensor y({tokens, weight_->rows()}, x.dtype());  // the parts of a weight lie below each other
  const GemmFactor factor = forward_factor(weight_->value(), adapters_, draws);
  const Tensor bias = bias_->value();
  if (tensor_parallel_.has_own_rows()) {
    multiply_gathered(x, factor, y, tensor_parallel_, for_backward);
    kernels::finish_linear(y, bias, epilogue);
    return y;
  }
  if (adapters_ != nullptr) {
    factor.multiply(x, y);
    kernels::finish_linear(y, bias, epilogue);
  } else {
    kernels::linear(x, factor.weight, bias, y, epilogue);
  }
  if (for_backward != nullptr) *for_backward = x;
  return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                                      const Tensor& draws) const {
  if (tiles_ != nullptr) return backward_by_tiles(x, dy, use, later, draws);
  const auto add_gradients = [dy, weight = weight_, bias = bias_](const Tensor& input) {
    weight->add_gradient([&](const Tensor& gradient, bool accumulates) {
      kernels::gemm(dy, Transpose::yes, input, Transpose::no, gradient, accumulates);
    });
    add_bias_gradient(dy, *bias);
  };
  return ColumnParallelBackward{tensor_parallel_, *weight_, *used_, add_gradients, adapters_, draws}(x, dy, use, later);
}

Tensor ColumnParallelLinear::forward_by_tiles(const Tensor& x, ParameterUse& use, const kernels::Epilogue& epilogue,
                                              const Tensor& draws) const {
  Tensor y({x.rows(), weight_->rows()}, x.dtype());
  tiles_->multiply(x, y, use);
  const InUse in_use(use, *used_, Pass::forward);
  forward_factor({}, adapters_, draws).add(x, y);
  kernels::finish_linear(y, bias_->value(), epilogue);
  return y;
}

Tensor ColumnParallelLinear::backward_by_tiles(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                                               const Tensor& draws) const {
  Tensor dx = tensor_parallel_.tensor_to_sum({dy.rows(), weight_->columns()}, dy.dtype());
  Work sum;
  const std::function<void()> start = [&] { sum = tensor_parallel_.start_sum(dx, "column-parallel backward"); };
  tiles_->multiply_back(x, dy, dx, use, later, adapters_ == nullptr ? start : nullptr);
  {
    const InUse in_use(use, *used_, backward_pass(later));
    const LowRank low = factors_of(adapters_, draws);
    if (adapters_ != nullptr) {
      factor_of({}, Transpose::no, low).add(dy, dx);
      start();
    }
    add_now_or(later, *used_, [x, dy, low, bias = bias_, adapters = adapters_] {
      add_bias_gradient(dy, *bias);
      if (adapters != nullptr) adapters->add_gradients(low, x, dy);
    });
  }
  computation().wait(sum);
  return dx;
}

RowParallelLinear::RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out,
                                     Initial weight, const TensorParallel& tensor_parallel, bool has_bias,
                                     const AdapterSet& adapters)
    : tensor_parallel_(tensor_parallel) {
  const Parameter whole = Parameter::divided(name + ".weight", {out, in}, 1, tensor_parallel.size(), tensor_parallel.rank(),
                                             {.initial = weight, .matrices = {out}, .overwrites_gradient = true});
  tiles_ = make_tiles(parameters, whole, 0, tensor_parallel);
  if (tiles_ == nullptr) weight_ = &parameters.add(whole);
  // Where every tensor-parallel rank has the whole dy, the bias's gradient is complete on each.
  bias_ = !has_bias
              ? nullptr
              : &parameters.add(Parameter::whole(name + ".bias", {out}, tensor_parallel.row_axes(), {.decays = false}));
  adapters_ = make_adapters(parameters, name, adapters, weight_ != nullptr ? *weight_ : whole, {}, tensor_parallel, false);
  used_ = &parameters.used_together(joined({weight_, bias_}, adapters_.get()));
}

Tensor RowParallelLinear::forward(const Tensor& x, const Tensor& residual, ParameterUse& use, const Tensor& draws) const {
  if (tiles_ != nullptr) return forward_by_tiles(x, residual, use, draws);
  const InUse in_use(use, *used_, Pass::forward);
  const TensorParallel& parallel = tensor_parallel_;
  Tensor y = parallel.tensor_to_sum({parallel.own_rows(x.rows()).count, weight_->value.rows()}, x.dtype());
  if (parallel.size() == 1 && adapters_ == nullptr) {
    kernels::linear_add(x, weight_->value, value_of(bias_), residual, y);
    return y;
  }
  const GemmFactor factor = forward_factor(weight_->value, adapters_, draws);
  const ChunkedGemmOptions options{.tag = "row-parallel forward"};
  if (parallel.size() == 1) {
    factor.multiply(x, y);
  } else if (parallel.has_own_rows()) {
    gemm_reduce_scatter(x, parallel.rows_of_ranks(x.rows()), factor, y, parallel.group, parallel.stream, options);
  } else {
    gemm_all_reduce(x, factor, y, parallel.group, parallel.stream, options);
  }
  kernels::finish_linear(y, value_of(bias_));
  kernels::add(residual, y, y);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                                   const kernels::BackwardEpilogue& epilogue, const Tensor& draws) const {
  if (tiles_ != nullptr) return backward_by_tiles(x, dy, use, later, epilogue, draws);
  const InUse in_use(use, *used_, backward_pass(later));
  const std::int64_t products = epilogue.before ? kernels::products_of(epilogue.activation) : 1;
  const auto result = [&] { return Tensor({x.rows(), products * weight_->value.columns()}, dy.dtype()); };
  if (tensor_parallel_.has_own_rows()) {
    const Tensor product = backward_of_rows(x, dy, later, draws);
    Tensor dx = products > 1 ? result() : product;
    kernels::finish_linear_backward(product, dx, epilogue);
    return dx;
  }
  Tensor dx = result();
  const LowRank low = factors_of(adapters_, draws);
  if (adapters_ != nullptr) {
    const MemoryScope scratch(MemoryKind::other);
    const Tensor product = products > 1 ? Tensor({x.rows(), weight_->value.columns()}, dy.dtype()) : dx;
    factor_of(weight_->value, Transpose::no, low).multiply(dy, product);
    kernels::finish_linear_backward(product, dx, epilogue);
  } else {
    kernels::linear_backward(dy, weight_->value, dx, epilogue);
  }
  const auto add = add_gradients(x, low);
  add_now_or(later, *used_, [dy, add] { add(dy, dy); });
  return dx;
}

Tensor RowParallelLinear::forward_by_tiles(const Tensor& x, const Tensor& residual, ParameterUse& use,
                                           const Tensor& draws) const {
  constexpr const char* tag = "row-parallel forward";
  Tensor y = adapters_ != nullptr ? tensor_parallel_.tensor_to_sum(residual.shape(), x.dtype())
                                  : Tensor(residual.shape(), x.dtype());
  if (adapters_ == nullptr && tensor_parallel_.size() > 1) {
    tiles_->multiply_and_sum(x, y, use, tensor_parallel_, tag);
  } else {
    tiles_->multiply(x, y, use);
  }
  const InUse in_use(use, *used_, Pass::forward);
  if (adapters_ != nullptr) {  // what they add is in the sum
    forward_factor({}, adapters_, draws).add(x, y);
    tensor_parallel_.sum(y, tag);
  }
  kernels::finish_linear(y, value_of(bias_));
  kernels::add(residual, y, y);
  return y;
}

Tensor RowParallelLinear::backward_by_tiles(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                                            const kernels::BackwardEpilogue& epilogue, const Tensor& draws) const {
  const Tensor product(x.shape(), dy.dtype());
  tiles_->multiply_back(x, dy, product, use, later);
  const InUse in_use(use, *used_, backward_pass(later));
  const LowRank low = factors_of(adapters_, draws);
  factor_of({}, Transpose::no, low).add(dy, product);
  const std::int64_t products = epilogue.before ? kernels::products_of(epilogue.activation) : 1;
  Tensor dx = products > 1 ? Tensor({x.rows(), products * x.columns()}, dy.dtype()) : product;
  kernels::finish_linear_backward(product, dx, epilogue);
  const auto add = add_gradients(x, low);
  add_now_or(later, *used_, [dy, add] { add(dy, dy); });
  return dx;
}

std::function<void(const Tensor& dy, const Tensor& of_bias)> RowParallelLinear::add_gradients(const Tensor& x,
                                                                                              const LowRank& low) const {
  return [x, low, weight = weight_, bias = bias_, adapters = adapters_](const Tensor& dy, const Tensor& of_bias) {
    if (weight != nullptr) add_weight_gradient(x, dy, weight);
    add_bias_gradient(of_bias, bias);
    if (adapters != nullptr) adapters->add_gradients(low, x, dy);
  };
}

// The bias sees own rows only, the weight the rows of all ranks.
Tensor RowParallelLinear::backward_of_rows(const Tensor& x, const Tensor& dy, WeightGradients* later,
                                           const Tensor& draws) const {
  const TensorParallel& parallel = tensor_parallel_;
  Tensor dx({x.rows(), weight_->value.columns()}, dy.dtype());
  const Tensor gathered = Tensor::symmetric({x.rows(), dy.columns()}, dy.dtype());
  const LowRank low = factors_of(adapters_, draws);
  all_gather_gemm(dy, parallel.rows_of_ranks(x.rows()), factor_of(weight_->value, Transpose::no, low), dx, gathered,
                  parallel.group, parallel.stream, {.tag = "row-parallel backward"});
  const auto add_all = add_gradients(x, low);
  const auto add = [parallel, add_all](const Tensor& all) { add_all(all, parallel.own_rows(all)); };
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
  LayerCost cost = column_parallel_cost(tensor_parallel_, *weight_, tokens, adapters_.get());
  if (tiles_ != nullptr) tiles_->add_cost(tokens, cost, adapters_ == nullptr);
  if (!bias_->any()) return cost;
  const auto result = static_cast<double>(tokens.bytes(tokens.count * weight_->rows()));
  cost.parameters += bias_->elements();
  // Behind products in chunks, the bias takes a pass of its own.
  if (tensor_parallel_.has_own_rows() && !activates)
    cost.forward = cost.forward + PassCost{.bytes = 2 * result, .kernels = 1};
  if (bias_->trainable()) cost.weight = cost.weight + PassCost{.bytes = result, .kernels = 1};
  return cost;
}

// On one rank the residual's addition is part of the product; else it follows the sum, behind the bias.
LayerCost RowParallelLinear::cost(const CostedTokens& tokens) const {
  const OwnRows weight = tiles_ != nullptr ? OwnRows(tiles_->records()) : OwnRows(weight_);
  const std::int64_t in = weight.columns(), out = weight.rows();
  const Product forward{tokens.count, out, in}, input{tokens.count, in, out}, gradient{out, in, tokens.count, true};
  const TensorParallel& parallel = tensor_parallel_;
  const std::int64_t all = tokens.bytes(tokens.count * out);
  const std::int64_t own = tokens.bytes(parallel.own_rows(tokens.count).count * out);
  const bool alone = parallel.size() == 1;
  LayerCost cost;
  cost.parameters = weight.elements() + (bias_ != nullptr ? bias_->elements() : 0);
  cost.forward = {.products = {forward}, .bytes = static_cast<double>(own) * (alone ? 1 : 5), .kernels = alone ? 0.0 : 2.0};
  cost.input.products = {input};
  if (weight.trainable()) cost.weight.products = {gradient};
  if (bias_ != nullptr && bias_->trainable)
    cost.weight = cost.weight + PassCost{.bytes = static_cast<double>(own), .kernels = 1};
  if (adapters_ != nullptr) {
    adapters_->add_cost(tokens, cost);
    if (alone) cost.forward = cost.forward + PassCost{.bytes = 4.0 * static_cast<double>(own), .kernels = 2};
  }
  const bool trains = weight.trainable() || used_->any_trainable();
  cost.kept = tokens.bytes(tokens.count * in);
  if (trains) cost.later += cost.kept + (parallel.keeps_gathered ? all : own);
  if (tiles_ != nullptr) tiles_->add_cost(tokens, cost, adapters_ == nullptr);
  if (alone) return cost;
  using enum Exchange::Hidden;
  const auto exchange = [&](Collective kind, Exchange::Hidden hidden, const Product& product) {
    return Exchange{kind, tokens.count * out, tokens.dtype, hidden, product};
  };
  if (!parallel.has_own_rows()) {
    const bool hides = tiles_ == nullptr || adapters_ == nullptr;
    cost.forward.exchanges = {exchange(Collective::all_reduce, hides ? in_chunks : not_at_all, forward)};
    return cost;
  }
  cost.forward.exchanges = {exchange(Collective::reduce_scatter, in_chunks, forward)};
  cost.input.exchanges = {exchange(Collective::all_gather, in_chunks, input)};
  cost.backward += all;
  if (tokens.splits && trains && !parallel.keeps_gathered)
    cost.weight.exchanges = {exchange(Collective::all_gather, not_at_all, {})};
  return cost;
}

}  // namespace stretto
