// Sums over all rows and over all elements, in two halves: what each block has summed is added in the order of the blocks.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"
#include "device/cuda/partial_sums.cuh"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int rows_together = 4;
constexpr int column_block_rows = 8;

// A block is of 32 packs of neighbouring columns and 8 rows; parts gets one row of sums for each blockIdx.y.
template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(32 * column_block_rows)
    column_sums_kernel(const void* x, std::int64_t rows, std::int64_t columns, A* parts) {
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x) * N;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * column_block_rows;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * column_block_rows + threadIdx.y;
  A sums[N] = {};
  if (c < columns) {
    for (; row + (rows_together - 1) * step < rows; row += rows_together * step) {
      Pack<T, N> packs[rows_together];
#pragma unroll
      for (int u = 0; u < rows_together; ++u) packs[u] = load<T, N>(x, (row + u * step) * columns + c);
#pragma unroll
      for (int u = 0; u < rows_together; ++u) {
#pragma unroll
        for (int n = 0; n < N; ++n) sums[n] += widened<T>(packs[u].at[n]);
      }
    }
    for (; row < rows; row += step) {
      const Pack<T, N> pack = load<T, N>(x, row * columns + c);
#pragma unroll
      for (int n = 0; n < N; ++n) sums[n] += widened<T>(pack.at[n]);
    }
  }
  __shared__ A of_rows[column_block_rows][N][32];
#pragma unroll
  for (int n = 0; n < N; ++n) of_rows[threadIdx.y][n][threadIdx.x] = sums[n];
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    A sum = of_rows[0][n][threadIdx.x];
    for (int y = 1; y < column_block_rows; ++y) sum += of_rows[y][n][threadIdx.x];
    parts[static_cast<std::int64_t>(blockIdx.y) * columns + c + n] = sum;
  }
}

// The turns of one thread; its sum stays in it.
template <class T>
struct Squares {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 4;

  const void* x;
  double sum = 0;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) {
    Pack<T, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<T, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const double value = widened<T>(packs[u].at[w]);
        sum = fused(value, value, sum);
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(element_threads) squares_kernel(const Range range, const void* x, double* parts) {
  Squares<T> squares{x};
  take_turns(range, squares);
  const double sum = over_row(squares.sum, Plus());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(element_threads) add_squares_kernel(const double* parts, unsigned count, double* result) {
  double sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
  sum = over_row(sum, Plus());
  if (threadIdx.x == 0) *result = sum;
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::add_column_sums(const Tensor& x, const Tensor& sums, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();
    const std::int64_t columns = x.columns();
    if (rows == 0 || columns == 0) return;
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const std::int64_t across = divided_up(columns, 32 * N);
      const std::int64_t wanted = std::int64_t{multiprocessors()} * 8 / across;
      const std::int64_t strips =
          std::clamp<std::int64_t>(wanted, 1, divided_up(rows, std::int64_t{column_block_rows} * rows_together));
      const Scratch parts(static_cast<std::size_t>(strips * columns) * sizeof(A), stream);
      launch("sum columns", column_sums_kernel<T, N>, dim3(static_cast<unsigned>(across), static_cast<unsigned>(strips)),
             dim3(32, column_block_rows), stream, x.raw(), rows, columns, parts.as<A>());
      launch_add_partial_sums<A>(parts.as<A>(), strips, columns, sums.data<A>(), columns, stream);
    };
    constexpr int pack = 16 / sizeof(T);
    if (rows_of_packs(columns, pack, x.raw())) {
      run(std::integral_constant<int, pack>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  });
}

double CudaKernels::sum_of_squares(const Tensor& x, GpuStream stream) {
  double result = 0;
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    if (x.size() == 0) return;
    const Range range(x.size(), Squares<T>::pack, x.raw(), sizeof(T));
    const unsigned blocks = element_blocks(range, Squares<T>::together);
    const Scratch parts((blocks + std::size_t{1}) * sizeof(double), stream);
    double* const sum = parts.as<double>() + blocks;
    launch("sum squares", squares_kernel<T>, blocks, element_threads, stream, range, x.raw(), parts.as<double>());
    launch("add sums of squares", add_squares_kernel, 1, element_threads, stream, parts.as<double>(), blocks, sum);
    check_cuda(cudaMemcpyAsync(&result, sum, sizeof result, cudaMemcpyDeviceToHost, cuda(stream)), "read a sum of squares");
    check_cuda(cudaStreamSynchronize(cuda(stream)), "wait for a sum of squares");
  });
  return result;
}

}  // namespace stretto
