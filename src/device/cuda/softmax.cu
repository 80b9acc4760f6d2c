// A row is read once from memory; parts that do not fit into registers are read again from the cache.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int most_threads = 1024;

template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads)
    softmax_kernel(const void* x, void* y, std::int64_t rows, std::int64_t columns, A lowest) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const HeldRow<T, N> held(x, row, columns);
    A max = lowest;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
#pragma unroll
      for (int n = 0; n < N; ++n) max = Largest()(max, numbers.at[n]);
    });
    max = over_row(max, Largest());
    A sum = 0;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
#pragma unroll
      for (int n = 0; n < N; ++n) sum += exponential_of<T>(numbers.at[n] - max);
    });
    const A inverse_sum = A{1} / over_row(sum, Plus());
    // Exponentials are computed twice: a 16-bit y would round them an additional time in between.
    held.each([&](std::int64_t c, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
      Pack<T, N> result;
#pragma unroll
      for (int n = 0; n < N; ++n) result.at[n] = rounded<T>(product(exponential_of<T>(numbers.at[n] - max), inverse_sum));
      store<T, N>(y, row * columns + c, result);
    });
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::softmax(const Tensor& x, const Tensor& y, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    const std::int64_t rows = x.rows();
    const std::int64_t columns = x.columns();
    if (rows == 0 || columns == 0) return;
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const dim3 block = row_block(divided_up(columns, N), HeldRow<T, N>::held, most_threads);
      launch("compute softmax", softmax_kernel<T, N>, row_blocks(rows, block), block, stream, x.raw(), y.raw(), rows,
             columns, -std::numeric_limits<Accumulator<T>>::infinity());
    };
    constexpr int pack = 16 / sizeof(T);
    if (rows_of_packs(columns, pack, x.raw(), y.raw())) {
      run(std::integral_constant<int, pack>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace stretto
