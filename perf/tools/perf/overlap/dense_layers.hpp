#pragma once
#include <vector>

#include "perf/overlap/overlap_case.hpp"
#include "stretto/kernels.hpp"

namespace perf {

// Small integers, the same on all ranks and in all runs, scaled so that sums over a layer stay near them.
stretto::Tensor patterned(stretto::Shape shape, stretto::DType dtype, int seed, double scale);
// Fills existing memory in the same way.
void fill_patterned(const stretto::Tensor& tensor, int seed, double scale);

// The products of a linear layer: y = x W^T; dx = dy W; dW = dy^T x.
inline void forward(const stretto::Tensor& x, const stretto::Tensor& weight, const stretto::Tensor& y) {
  stretto::kernels::gemm(x, stretto::kernels::Transpose::no, weight, stretto::kernels::Transpose::yes, y);
}
inline void backward_input(const stretto::Tensor& dy, const stretto::Tensor& weight, const stretto::Tensor& dx) {
  stretto::kernels::gemm(dy, stretto::kernels::Transpose::no, weight, stretto::kernels::Transpose::no, dx);
}
inline void backward_weight(const stretto::Tensor& x, const stretto::Tensor& dy, const stretto::Tensor& gradient,
                            bool accumulate = false) {
  stretto::kernels::gemm(dy, stretto::kernels::Transpose::yes, x, stretto::kernels::Transpose::no, gradient, accumulate);
}

}  // namespace perf
