#include "layers/tensor_parallel/column_parallel.hpp"

#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace stretto {

using kernels::Transpose;

void multiply_gathered(const Tensor& x, const Tensor& weight, const Tensor& y, const TensorParallel& tensor_parallel,
                       Tensor* for_backward) {
  const Tensor gathered = Tensor::symmetric({y.rows(), x.columns()}, x.dtype());
  all_gather_gemm(x, tensor_parallel.rows_of_ranks(y.rows()), weight, Transpose::yes, y, gathered, tensor_parallel.group,
                  tensor_parallel.stream, {.tag = "column-parallel forward"});
  if (for_backward != nullptr) *for_backward = tensor_parallel.keeps_gathered ? gathered : x;
}

Tensor ColumnParallelBackward::operator()(const Tensor& x, const Tensor& dy, ParameterUse& use,
                                          WeightGradients* later) const {
  return tensor_parallel.has_own_rows() ? sum_own(x, dy, use, later) : sum_all(x, dy, use, later);
}

Tensor ColumnParallelBackward::sum_all(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const {
  Work sum;
  Tensor dx;
  {
    const InUse in_use(use, used, backward_pass(later));
    dx = tensor_parallel.tensor_to_sum({dy.rows(), weight->value.columns()}, dy.dtype());
    kernels::gemm(dy, Transpose::no, weight->value, Transpose::no, dx);
    sum = tensor_parallel.start_sum(dx, "column-parallel backward");
    add_now_or(later, used, [x, add = add_gradients] { add(x); });
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
  const auto add = [input, add = add_gradients] { add(input->whole()); };
  const bool adds_now = later == nullptr && used.any_trainable();
  if (adds_now) input->gather();
  if (later != nullptr) later->add(used, add, [input] { input->gather(); });
  Tensor dx({tensor_parallel.own_rows(rows).count, weight->value.columns()}, dy.dtype());
  gemm_reduce_scatter(dy, tensor_parallel.rows_of_ranks(rows), weight->value, Transpose::no, dx, tensor_parallel.group,
                      tensor_parallel.stream,
                      {.tag = "column-parallel backward", .meanwhile = adds_now ? add : std::function<void()>()});
  return dx;
}

}  // namespace stretto
