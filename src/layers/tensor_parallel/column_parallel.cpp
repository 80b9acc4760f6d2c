#include "layers/tensor_parallel/column_parallel.hpp"

#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace stretto {

using kernels::Transpose;

void multiply_gathered(const Tensor& x, const GemmFactor& factor, const Tensor& y, const TensorParallel& tensor_parallel,
                       Tensor* for_backward) {
  const Tensor gathered = Tensor::symmetric({y.rows(), x.columns()}, x.dtype());
  all_gather_gemm(x, tensor_parallel.rows_of_ranks(y.rows()), factor, y, gathered, tensor_parallel.group,
                  tensor_parallel.stream, {.tag = "column-parallel forward"});
  if (for_backward != nullptr) *for_backward = tensor_parallel.keeps_gathered ? gathered : x;
}

Tensor ColumnParallelBackward::operator()(const Tensor& x, const Tensor& dy, ParameterUse& use,
                                          WeightGradients* later) const {
  return tensor_parallel.has_own_rows() ? sum_own(x, dy, use, later) : sum_all(x, dy, use, later);
}

std::function<void(const Tensor& x)> ColumnParallelBackward::add_all(const Tensor& dy, const LowRank& factors) const {
  if (adapters == nullptr) return add_gradients;
  return [dy, factors, add = add_gradients, its = adapters](const Tensor& x) {
    add(x);
    its->add_gradients(factors, x, dy);
  };
}

Tensor ColumnParallelBackward::sum_all(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const {
  Work sum;
  Tensor dx;
  {
    const InUse in_use(use, used, backward_pass(later));
    dx = tensor_parallel.tensor_to_sum({dy.rows(), weight.columns()}, dy.dtype());
    const LowRank low = factors();
    GemmFactor{weight.value(), Transpose::no, low.b, low.a, low.dropout}.multiply(dy, dx);
    sum = tensor_parallel.start_sum(dx, "column-parallel backward");
    add_now_or(later, used, [x, add = add_all(dy, low)] { add(x); });
  }
  computation().wait(sum);
  return dx;
}

Tensor ColumnParallelBackward::sum_own(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const {
  const InUse in_use(use, used, backward_pass(later));
  const std::int64_t rows = dy.rows();
  const auto input = std::make_shared<DividedTensor>(
      tensor_parallel.keeps_gathered ? DividedTensor(x, tensor_parallel, false)
                                     : DividedTensor::of_share(x, rows, tensor_parallel, "column-parallel input"));
  const LowRank low = factors();
  const auto add = [input, add = add_all(dy, low)] { add(input->whole()); };
  const bool adds_now = later == nullptr && used.any_trainable();
  if (adds_now) input->gather();
  if (later != nullptr) later->add(used, add, [input] { input->gather(); });
  Tensor dx({tensor_parallel.own_rows(rows).count, weight.columns()}, dy.dtype());
  gemm_reduce_scatter(dy, tensor_parallel.rows_of_ranks(rows), {weight.value(), Transpose::no, low.b, low.a, low.dropout},
                      dx, tensor_parallel.group, tensor_parallel.stream,
                      {.tag = "column-parallel backward", .meanwhile = adds_now ? add : std::function<void()>()});
  return dx;
}

LayerCost column_parallel_cost(const TensorParallel& tensor_parallel, const OwnRows& weight, const CostedTokens& tokens,
                               const LinearAdapters* adapters) {
  const std::int64_t in = weight.columns(), out = weight.rows();
  const Product forward{tokens.count, out, in}, input{tokens.count, in, out}, gradient{out, in, tokens.count, true};
  const std::int64_t all = tokens.bytes(tokens.count * in);
  const std::int64_t own = tokens.bytes(tensor_parallel.own_rows(tokens.count).count * in);
  LayerCost cost;
  cost.parameters = weight.elements();
  cost.forward.products = {forward};
  cost.input.products = {input};
  if (weight.trainable()) cost.weight.products = {gradient};
  if (weight.is_copied()) {  // put together in front of each product, and its gradient taken apart
    const auto copied = static_cast<double>(tokens.bytes(2 * out * in));
    for (PassCost* pass : {&cost.forward, &cost.input}) *pass = *pass + PassCost{.bytes = copied, .kernels = 3};
    if (weight.trainable()) cost.weight = cost.weight + PassCost{.bytes = 1.5 * copied, .kernels = 3};
  }
  if (adapters != nullptr) adapters->add_cost(tokens, cost);
  const bool trains = !cost.weight.products.empty();
  cost.kept = tensor_parallel.keeps_gathered ? all : own;
  if (trains) cost.later += cost.kept + tokens.bytes(tokens.count * out);
  cost.backward += all;
  if (tensor_parallel.size() == 1) return cost;
  using enum Exchange::Hidden;
  const auto exchange = [&](Collective kind, Exchange::Hidden hidden, const Product& product) {
    return Exchange{kind, tokens.count * in, tokens.dtype, hidden, product};
  };
  const Exchange::Hidden by_gradient = tokens.splits || !trains ? not_at_all : beside;
  const Product meanwhile = trains ? cost.weight.products.front() : Product{};
  if (!tensor_parallel.has_own_rows()) {
    cost.input.exchanges = {exchange(Collective::all_reduce, by_gradient, meanwhile)};
    return cost;
  }
  cost.forward.exchanges = {exchange(Collective::all_gather, in_chunks, forward)};
  cost.input.exchanges = {exchange(Collective::reduce_scatter, by_gradient, meanwhile)};
  cost.backward += all;  // a product for every rank's rows, and one from every rank
  if (tensor_parallel.keeps_gathered || !trains) return cost;
  cost.backward += all;
  if (tokens.splits) {
    cost.weight.exchanges = {exchange(Collective::all_gather, not_at_all, {})};
  } else {
    cost.input.exchanges.push_back(exchange(Collective::all_gather, beside, input));
  }
  return cost;
}

}  // namespace stretto
