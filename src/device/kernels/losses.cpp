#include "device/kernels/arguments.hpp"
#include "device/kernels/run_kernel.hpp"

namespace stretto::kernels {
namespace {

// row_max has an element for every row, also where rows have no columns.
void check_rows(const char* kernel, const Tensor& logits, const Tensor& row_max) {
  check_holds(kernel, "row_max", row_max, accumulator(logits.dtype()), row_max.size());
  check_holds(kernel, "logits", logits, logits.dtype(), row_max.size() * logits.columns());
}

}  // namespace

void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                           const Tensor& sum_exp, const Tensor& target_logit) {
  check_rows("cross_entropy_forward", logits, row_max);
  check_holds("cross_entropy_forward", "targets", targets, DType::i32, row_max.size());
  check_holds("cross_entropy_forward", "sum_exp", sum_exp, row_max.dtype(), row_max.size());
  check_holds("cross_entropy_forward", "target_logit", target_logit, row_max.dtype(), row_max.size());
  run_kernel("cross_entropy_forward", cpu::cross_entropy_forward, &GpuKernels::cross_entropy_forward, logits, targets, first,
             row_max, sum_exp, target_logit);
}

void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp) {
  check_holds("cross_entropy_rebase", "share_max", share_max, accumulator(share_max.dtype()), share_max.size());
  check_holds("cross_entropy_rebase", "row_max", row_max, share_max.dtype(), share_max.size());
  check_holds("cross_entropy_rebase", "sum_exp", sum_exp, share_max.dtype(), share_max.size());
  run_kernel("cross_entropy_rebase", cpu::cross_entropy_rebase, &GpuKernels::cross_entropy_rebase, share_max, row_max,
             sum_exp);
}

void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                            const Tensor& sum_exp, double factor) {
  check_rows("cross_entropy_backward", logits, row_max);
  check_holds("cross_entropy_backward", "targets", targets, DType::i32, row_max.size());
  check_holds("cross_entropy_backward", "sum_exp", sum_exp, row_max.dtype(), row_max.size());
  run_kernel("cross_entropy_backward", cpu::cross_entropy_backward, &GpuKernels::cross_entropy_backward, logits, targets,
             first, row_max, sum_exp, factor);
}

}  // namespace stretto::kernels
