// Sums over all rows and over all elements, in two halves: the sums of the blocks are added in block order.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"
#include "device/cuda/partial_sums.cuh"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int rows_together = 4;
constexpr int column_block_rows = 8;

// A block has 32 consecutive packs of columns and 8 rows; parts gets one row of sums for each blockIdx.y.
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

// The Body of one thread, which keeps the thread's sum.
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

// Each tensor has `count` parts; some of them may be zero.
__global__ void __launch_bounds__(element_threads) add_squares_kernel(const double* parts, unsigned count, double* sums) {
  const double* const own = parts + static_cast<std::size_t>(blockIdx.x) * count;
  double sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) sum += own[i];
  sum = over_row(sum, Plus());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
Range squares_range(const Tensor& x) {
  return Range(x.size(), Squares<T>::pack, x.raw(), sizeof(T));
}
template <class T>
unsigned squares_blocks(const Tensor& x) {
  return element_blocks(squares_range<T>(x), Squares<T>::together);
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
      kernels::with_gradient_type<T>(sums.dtype(), [&]<class G>(G) {
        launch_add_partial_sums(parts.as<A>(), strips, Sums<G, 1>{{sums.raw()}}, columns, stream);
      });
    };
    constexpr int pack = 16 / sizeof(T);
    if (rows_of_packs(columns, pack, x.raw())) {
      run(std::integral_constant<int, pack>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  });
}

void CudaKernels::sums_of_squares(const std::vector<Tensor>& xs, double* sums, GpuStream stream) {
  if (xs.empty()) return;
  unsigned most_blocks = 1;
  for (const Tensor& x : xs) {
    kernels::with_compute_type(x.dtype(), [&]<class T>(T) { most_blocks = std::max(most_blocks, squares_blocks<T>(x)); });
  }
  const std::size_t bytes = xs.size() * most_blocks * sizeof(double);
  const Scratch parts(bytes, stream);
  check_cuda(cudaMemsetAsync(parts.as<double>(), 0, bytes, cuda(stream)), "clear the sums of squares");
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const Tensor& x = xs[i];
    if (x.size() == 0) continue;
    kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
      launch("sum squares", squares_kernel<T>, squares_blocks<T>(x), element_threads, stream, squares_range<T>(x), x.raw(),
             parts.as<double>() + i * most_blocks);
    });
  }
  launch("add sums of squares", add_squares_kernel, static_cast<unsigned>(xs.size()), element_threads, stream,
         parts.as<double>(), most_blocks, sums);
}

}  // namespace stretto
