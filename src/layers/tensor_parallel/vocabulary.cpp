#include "stretto/layers/vocabulary.hpp"

#include <cmath>
#include <tuple>

#include "device/stream/kernel_scope.hpp"
#include "layers/tensor_parallel/column_parallel.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

using kernels::Transpose;

VocabularyParallelTable::VocabularyParallelTable(Parameters& parameters, const std::string& name, std::int64_t vocabulary,
                                                 std::int64_t hidden, Initial initial, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel) {
  table_ = &parameters.add(Parameter::divided(name + ".weight", {vocabulary, hidden}, 0, tensor_parallel.size(),
                                              tensor_parallel.rank(), {.initial = initial, .overwrites_gradient = true}));
  used_ = &parameters.used_together({table_});
}

Tensor VocabularyParallelTable::embed(const Tensor& tokens, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const Tensor y = tensor_parallel_.tensor_to_sum({tokens.size(), table_->value.columns()}, table_->value.dtype());
  kernels::embedding_forward(tokens, first(), table_->value, y);
  return tensor_parallel_.sum_own_rows(y, "embedding forward");
}

void VocabularyParallelTable::embed_backward(const Tensor& tokens, const Tensor& dy, ParameterUse& use,
                                             WeightGradients* later) const {
  if (!table_->trainable) return;  // tokens have no gradient
  const auto all = std::make_shared<DividedTensor>(
      tensor_parallel_.has_own_rows() ? DividedTensor::of_share(dy, tokens.size(), tensor_parallel_, "embedding backward")
                                      : DividedTensor(dy, tensor_parallel_, false));
  const auto add_gradient = [tokens, all, table = table_] {
    if (table->take_unset()) as_kernel("zero", [&] { table->gradient.zero(); });
    kernels::embedding_backward(tokens, table->first[0], all->whole(), table->gradient);
  };
  if (later != nullptr) {  // there is no other half
    later->add(*used_, add_gradient, [all] { all->gather(); });
    return;
  }
  const InUse in_use(use, *used_, Pass::backward);
  add_gradient();
}

Tensor VocabularyParallelTable::logits(const Tensor& x, std::int64_t tokens, ParameterUse& use, Tensor* for_backward) const {
  const InUse in_use(use, *used_, Pass::forward);
  Tensor result({tokens, table_->value.rows()}, x.dtype());
  if (tensor_parallel_.has_own_rows()) {
    multiply_gathered(x, {table_->value, Transpose::yes}, result, tensor_parallel_, for_backward);
    return result;
  }
  kernels::gemm(x, Transpose::no, table_->value, Transpose::yes, result);
  if (for_backward != nullptr) *for_backward = x;
  return result;
}

Tensor VocabularyParallelTable::logits_backward(const Tensor& x, const Tensor& dlogits, ParameterUse& use,
                                                WeightGradients* later) const {
  const auto add_gradient = [dlogits, table = table_](const Tensor& input) {
    const bool overwrite = table->take_unset();
    kernels::gemm(dlogits, Transpose::yes, input, Transpose::no, table->gradient, !overwrite);
  };
  return ColumnParallelBackward{tensor_parallel_, OwnRows(table_), *used_, add_gradient}(x, dlogits, use, later);
}

namespace {

template <class T>
double loss_of(const Tensor& row_max, const Tensor& sums, const std::int32_t* targets) {
  const std::int64_t rows = row_max.size();
  const T* const most = row_max.data<T>();
  const T* const sum_exp = sums.data<T>();
  const T* const target_logit = sum_exp + rows;
  double loss = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    loss += std::log(static_cast<double>(sum_exp[row])) + static_cast<double>(most[row]) -
            static_cast<double>(target_logit[row]);
  }
  return loss;
}

}  // namespace

double VocabularyParallelCrossEntropy::Saved::loss() const {
  const Tensor most = row_max.on(Device::cpu);
  const Tensor others = sums.on(Device::cpu), tokens = targets.on(Device::cpu);
  const auto* const each = tokens.data<std::int32_t>();
  return most.dtype() == DType::f64 ? loss_of<double>(most, others, each) : loss_of<float>(most, others, each);
}

void VocabularyParallelCrossEntropy::forward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                             Saved& saved) const {
  const std::int64_t rows = logits.rows();
  const DType accumulator = kernels::accumulator(logits.dtype());
  saved.targets = targets;
  saved.row_max = tensor_parallel_.tensor_to_sum({rows}, accumulator);
  saved.sums = tensor_parallel_.tensor_to_sum({2, rows}, accumulator);
  const Tensor sum_exp = saved.sums.view(0, {rows});
  kernels::cross_entropy_forward(logits, targets, first, saved.row_max, sum_exp, saved.sums.view(rows, {rows}));
  if (tensor_parallel_.size() > 1) {
    const Tensor share_max = saved.row_max.clone();
    std::ignore =
        tensor_parallel_.group.all_reduce(saved.row_max, ReduceOp::max, computation(), {.tag = "cross entropy max"});
    kernels::cross_entropy_rebase(share_max, saved.row_max, sum_exp);
  }
  tensor_parallel_.sum(saved.sums, "cross entropy sums");
}

void VocabularyParallelCrossEntropy::backward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                              const Saved& saved, double factor) const {
  kernels::cross_entropy_backward(logits, targets, first, saved.row_max, saved.sums.view(0, {logits.rows()}), factor);
}

// The vectors are read, zeros or they are written, and the sum is.
LayerCost VocabularyParallelTable::embed_cost(const CostedTokens& tokens) const {
  const std::int64_t hidden = table_->extents.back();
  const std::int64_t own = tokens.bytes(tensor_parallel_.own_rows(tokens.count).count * hidden);
  LayerCost cost;
  cost.parameters = table_->elements();
  cost.forward = {.bytes = 3.0 * static_cast<double>(own), .kernels = 1};
  if (table_->trainable) {
    cost.input = {.bytes = 2.0 * static_cast<double>(own), .kernels = 1};
    cost.later = own;
  }
  if (tensor_parallel_.size() == 1) return cost;
  const auto exchange = [&](Collective kind) {
    return Exchange{.kind = kind, .elements = tokens.count * hidden, .dtype = tokens.dtype};
  };
  const bool own_rows = tensor_parallel_.has_own_rows();
  cost.forward.exchanges = {exchange(own_rows ? Collective::reduce_scatter : Collective::all_reduce)};
  if (own_rows && table_->trainable)
    (tokens.splits ? cost.weight : cost.input).exchanges = {exchange(Collective::all_gather)};
  return cost;
}

LayerCost VocabularyParallelTable::logits_cost(const CostedTokens& tokens) const {
  LayerCost cost = column_parallel_cost(tensor_parallel_, OwnRows(table_), tokens);
  cost.kept += tokens.bytes(tokens.count * table_->extents.front());  // the logits, which become their gradient
  return cost;
}

LayerCost VocabularyParallelCrossEntropy::cost(const CostedTokens& tokens, std::int64_t columns) const {
  const auto logits = static_cast<double>(tokens.bytes(tokens.count * columns));
  LayerCost cost;
  cost.forward = {.bytes = logits, .kernels = 2};
  cost.input = {.bytes = 2 * logits, .kernels = 2};
  if (tensor_parallel_.size() == 1) return cost;
  // A maximum, and two sums.
  cost.forward.exchanges = {{.kind = Collective::all_reduce, .elements = 3 * tokens.count, .dtype = tokens.accumulator()}};
  return cost;
}

}  // namespace stretto
