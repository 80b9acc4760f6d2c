// Forward and backward read the logits once each. Rows may have any number of columns, also none, and may begin at any
// element; the other tensors tell the number of rows.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int most_threads = most_visiting_threads;
constexpr int blocks_together = 4;  // one block finishes its row while the others continue

// Turns a sum of exp(x - from) into the sum of exp(x - to). The empty sum stays 0: it has no largest element.
template <class T, class A>
__device__ inline A rebased(A sum, A from, A to) {
  return sum == 0 ? A{0} : sum * exponential_of<T>(from - to);
}

// Each thread keeps its largest element so far and the sum of exponentials relative to it; a larger element scales the sum
// down (Milakov & Gimelshein 2018).
template <class T, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads, blocks_together)
    forward_kernel(const void* logits, const std::int32_t* targets, std::int64_t first, std::int64_t rows,
                   std::int64_t columns, A lowest, A* row_max, A* sum_exp, A* target_logit) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const auto* const x = row_of<T>(logits, row, columns);
    const std::int64_t target = targets[row] - first;
    A of_target = 0;
    if (threadIdx.x == 0 && target >= 0 && target < columns) of_target = widened<T>(load<T, 1>(x, target).at[0]);
    A own_max = lowest;
    A sum = 0;
    for_each_of_row<T>(x, columns, [&]<int N>(std::int64_t, const Numbers<T, N>& numbers) {
      A max = own_max;
#pragma unroll
      for (int n = 0; n < N; ++n) max = Largest()(max, numbers.at[n]);
      const A base = max == lowest ? A{0} : max;  // only masked elements so far, whose sum is 0
      sum = product(sum, exponential_of<T>(own_max - base));
#pragma unroll
      for (int n = 0; n < N; ++n) sum += exponential_of<T>(numbers.at[n] - base);
      own_max = max;
    });
    const A max = over_row(own_max, Largest());
    sum = over_row(rebased<T>(sum, own_max, max), Plus());
    if (threadIdx.x == 0) {
      const bool counts = targets[row] >= 0;
      row_max[row] = counts ? max : A{0};
      sum_exp[row] = counts ? sum : A{1};
      target_logit[row] = of_target;
    }
  }
}

template <class A>
__global__ void rebase_kernel(const A* share_max, const A* row_max, A* sum_exp, std::int64_t rows) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    sum_exp[row] = rebased<A>(sum_exp[row], share_max[row], row_max[row]);
  }
}

template <class T, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads, blocks_together)
    backward_kernel(void* logits, const std::int32_t* targets, std::int64_t first, std::int64_t rows, std::int64_t columns,
                    const A* row_max, const A* sum_exp, A factor) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    auto* const x = row_of<T>(logits, row, columns);
    const A max = row_max[row];
    const A weight = factor / sum_exp[row];
    const std::int64_t target = targets[row] - first;
    const bool counts = targets[row] >= 0;
    for_each_of_row<T>(x, columns, [&]<int N>(std::int64_t c, const Numbers<T, N>& numbers) {
      Pack<T, N> pack;
      const int here = target >= c && target < c + N ? static_cast<int>(target - c) : -1;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        A gradient = counts ? product(exponential_of<T>(numbers.at[n] - max), weight) : A{0};
        if (n == here) gradient -= factor;
        pack.at[n] = rounded<T>(gradient);
      }
      store<T, N>(x, c, pack);
    });
  }
}

template <class T>
dim3 block_for(std::int64_t columns) {
  return row_block(divided_up(columns, 16 / sizeof(T)), 4, most_threads);
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                        const Tensor& row_max, const Tensor& sum_exp, const Tensor& target_logit,
                                        GpuStream stream) {
  kernels::with_compute_type(logits.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = row_max.size();
    if (rows == 0) return;
    const dim3 block = block_for<T>(logits.columns());
    launch("compute cross entropy", forward_kernel<T>, row_blocks(rows, block), block, stream, logits.raw(),
           targets.data<std::int32_t>(), first, rows, logits.columns(), -std::numeric_limits<A>::infinity(),
           row_max.data<A>(), sum_exp.data<A>(), target_logit.data<A>());
  });
}

void CudaKernels::cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp,
                                       GpuStream stream) {
  kernels::with_compute_type(sum_exp.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = sum_exp.size();
    if (rows == 0) return;
    const dim3 block(1, 256);
    launch("rebase cross entropy", rebase_kernel<A>, row_blocks(rows, block), block, stream, share_max.data<A>(),
           row_max.data<A>(), sum_exp.data<A>(), rows);
  });
}

void CudaKernels::cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                         const Tensor& row_max, const Tensor& sum_exp, double factor, GpuStream stream) {
  kernels::with_compute_type(logits.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = row_max.size();
    if (rows == 0 || logits.columns() == 0) return;
    const dim3 block = block_for<T>(logits.columns());
    launch("compute the gradient of cross entropy", backward_kernel<T>, row_blocks(rows, block), block, stream, logits.raw(),
           targets.data<std::int32_t>(), first, rows, logits.columns(), row_max.data<A>(), sum_exp.data<A>(),
           static_cast<A>(factor));
  });
}

}  // namespace stretto
