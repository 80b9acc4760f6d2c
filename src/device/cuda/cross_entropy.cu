// Each kernel reads the logits once. Rows may have any number of columns, none too, and begin at any element: the number of
// rows is known from the other tensors.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int most_threads = 512;

template <class T>
__device__ inline const std::uint8_t* row_of(const void* x, std::int64_t row, std::int64_t columns) {
  return static_cast<const std::uint8_t*>(x) + row * columns * static_cast<std::int64_t>(sizeof(Raw<T>));
}

template <class T, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads)
    row_max_kernel(const void* logits, std::int64_t rows, std::int64_t columns, A lowest, A* row_max) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    A max = lowest;
    for_each_of_row<T>(row_of<T>(logits, row, columns), columns, [&]<int N>(std::int64_t, const Pack<T, N>& pack) {
#pragma unroll
      for (int n = 0; n < N; ++n) max = Largest()(max, widened<T>(pack.at[n]));
    });
    max = over_row(max, Largest());
    if (threadIdx.x == 0) row_max[row] = max;
  }
}

template <class T, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads)
    forward_kernel(const void* logits, const std::int32_t* targets, std::int64_t first, std::int64_t rows,
                   std::int64_t columns, const A* row_max, A* sum_exp, A* target_logit) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const std::uint8_t* const x = row_of<T>(logits, row, columns);
    const A max = row_max[row];
    A sum = 0;
    for_each_of_row<T>(x, columns, [&]<int N>(std::int64_t, const Pack<T, N>& pack) {
#pragma unroll
      for (int n = 0; n < N; ++n) sum += exponential_of<T>(widened<T>(pack.at[n]) - max);
    });
    sum = over_row(sum, Plus());
    if (threadIdx.x == 0) {
      const std::int64_t target = targets[row] - first;
      sum_exp[row] = sum;
      target_logit[row] = target >= 0 && target < columns ? widened<T>(load<T, 1>(x, target).at[0]) : A{0};
    }
  }
}

template <class T, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads)
    backward_kernel(void* logits, const std::int32_t* targets, std::int64_t first, std::int64_t rows, std::int64_t columns,
                    const A* row_max, const A* sum_exp, A factor) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    auto* const x = static_cast<std::uint8_t*>(logits) + row * columns * static_cast<std::int64_t>(sizeof(Raw<T>));
    const A max = row_max[row];
    const A weight = factor / sum_exp[row];
    const std::int64_t target = targets[row] - first;
    for_each_of_row<T>(x, columns, [&]<int N>(std::int64_t c, Pack<T, N> pack) {
      const int here = target >= c && target < c + N ? static_cast<int>(target - c) : -1;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        A gradient = product(exponential_of<T>(widened<T>(pack.at[n]) - max), weight);
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

void CudaKernels::row_max(const Tensor& logits, const Tensor& row_max, GpuStream stream) {
  kernels::with_compute_type(logits.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = row_max.size();
    if (rows == 0) return;
    const dim3 block = block_for<T>(logits.columns());
    launch("find the largest of rows", row_max_kernel<T>, row_blocks(rows, block), block, stream, logits.raw(), rows,
           logits.columns(), -std::numeric_limits<A>::infinity(), row_max.data<A>());
  });
}

void CudaKernels::cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                        const Tensor& row_max, const Tensor& sum_exp, const Tensor& target_logit,
                                        GpuStream stream) {
  kernels::with_compute_type(logits.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = row_max.size();
    if (rows == 0) return;
    const dim3 block = block_for<T>(logits.columns());
    launch("compute cross entropy", forward_kernel<T>, row_blocks(rows, block), block, stream, logits.raw(),
           targets.data<std::int32_t>(), first, rows, logits.columns(), row_max.data<A>(), sum_exp.data<A>(),
           target_logit.data<A>());
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
