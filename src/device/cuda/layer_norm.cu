// A row is read once: its packs stay in registers for the second pass, in which the variance is formed, and the third.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/partial_sums.cuh"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int most_forward_threads = 1024;
constexpr int most_backward_threads = 256;  // which need many registers

template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_forward_threads)
    forward_kernel(const void* x, const void* gamma, const void* beta, A epsilon, std::int64_t rows, std::int64_t columns,
                   void* y, A* mean_out, A* rstd_out) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const HeldRow<T, N> held(x, row, columns);
    A sum = 0;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
#pragma unroll
      for (int n = 0; n < N; ++n) sum += widened<T>(pack.at[n]);
    });
    const A mean = over_row(sum, Plus()) / static_cast<A>(columns);
    // The difference of the mean square and the squared mean would cancel where the mean is large.
    A squares = 0;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A centred = widened<T>(pack.at[n]) - mean;
        squares = fused(centred, centred, squares);
      }
    });
    const A rstd = A{1} / sqrt(over_row(squares, Plus()) / static_cast<A>(columns) + epsilon);
    held.each([&](std::int64_t c, const Pack<T, N>& pack) {
      const Pack<T, N> of_gamma = load<T, N>(gamma, c);
      const Pack<T, N> of_beta = load<T, N>(beta, c);
      Pack<T, N> result;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A normal = product(widened<T>(pack.at[n]) - mean, rstd);
        result.at[n] = rounded<T>(fused(normal, widened<T>(of_gamma.at[n]), widened<T>(of_beta.at[n])));
      }
      store<T, N>(y, row * columns + c, result);
    });
    if (threadIdx.x == 0) {
      mean_out[row] = mean;
      rstd_out[row] = rstd;
    }
  }
}

template <class T>
struct Gradient {
  using A = Accumulator<T>;
  A mean, rstd, mean_g, mean_g_normal;

  __device__ A normal(Raw<T> x) const { return product(widened<T>(x) - mean, rstd); }
  __device__ Raw<T> added(Raw<T> x, Raw<T> dy, Raw<T> gamma, Raw<T> dx) const {
    const A g = product(widened<T>(dy), widened<T>(gamma));
    const A change = fused(-normal(x), mean_g_normal, g - mean_g);
    return rounded<T>(fused(change, rstd, widened<T>(dx)));
  }
};

// With normal = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - normal mean(g normal)). Each thread keeps the
// sums for dgamma and dbeta of its columns over all rows that it sees; parts gets them, added up for the block: for each
// block, the columns of dgamma and then those of dbeta.
template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_backward_threads)
    backward_kernel(const void* x, const void* gamma, const A* mean_of_rows, const A* rstd_of_rows, const void* dy,
                    std::int64_t rows, std::int64_t columns, void* dx, A* parts) {
  using Row = HeldRow<T, N>;
  constexpr int held = Row::held;
  const std::int64_t further = static_cast<std::int64_t>(blockDim.x) * N;
  A* const dgamma_part = parts + static_cast<std::int64_t>(blockIdx.x) * 2 * columns;
  A* const dbeta_part = dgamma_part + columns;
  A dgamma[held][N] = {};
  A dbeta[held][N] = {};
  // Beyond what registers hold, which no row of one warp has, sums stay where they go in the end.
  for (std::int64_t c = Row::column(held); c < columns; c += further) {
    for (int n = 0; n < N; ++n) dgamma_part[c + n] = dbeta_part[c + n] = 0;
  }
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const Row of_x(x, row, columns);
    const Row of_dy(dy, row, columns);
    const Row of_dx(dx, row, columns);
    Gradient<T> gradient{mean_of_rows[row], rstd_of_rows[row], 0, 0};
    A sum_g = 0;
    A sum_g_normal = 0;
    const auto add = [&](Raw<T> x_c, Raw<T> dy_c, Raw<T> gamma_c, A& dgamma_c, A& dbeta_c) {
      const A normal = gradient.normal(x_c);
      dgamma_c = fused(widened<T>(dy_c), normal, dgamma_c);
      dbeta_c += widened<T>(dy_c);
      const A g = product(widened<T>(dy_c), widened<T>(gamma_c));
      sum_g += g;
      sum_g_normal = fused(g, normal, sum_g_normal);
    };
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (Row::column(k) >= columns) continue;
      const Pack<T, N> of_gamma = load<T, N>(gamma, Row::column(k));
#pragma unroll
      for (int n = 0; n < N; ++n) add(of_x.pack(k).at[n], of_dy.pack(k).at[n], of_gamma.at[n], dgamma[k][n], dbeta[k][n]);
    }
    for (std::int64_t c = Row::column(held); c < columns; c += further) {
      const Pack<T, N> x_pack = load<T, N>(x, row * columns + c);
      const Pack<T, N> dy_pack = load<T, N>(dy, row * columns + c);
      const Pack<T, N> of_gamma = load<T, N>(gamma, c);
      for (int n = 0; n < N; ++n) add(x_pack.at[n], dy_pack.at[n], of_gamma.at[n], dgamma_part[c + n], dbeta_part[c + n]);
    }
    gradient.mean_g = over_row(sum_g, Plus()) / static_cast<A>(columns);
    gradient.mean_g_normal = over_row(sum_g_normal, Plus()) / static_cast<A>(columns);
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (Row::column(k) >= columns) continue;
      const Pack<T, N> of_gamma = load<T, N>(gamma, Row::column(k));
      Pack<T, N> result = of_dx.pack(k);
#pragma unroll
      for (int n = 0; n < N; ++n)
        result.at[n] = gradient.added(of_x.pack(k).at[n], of_dy.pack(k).at[n], of_gamma.at[n], result.at[n]);
      store<T, N>(dx, row * columns + Row::column(k), result);
    }
    for (std::int64_t c = Row::column(held); c < columns; c += further) {
      const Pack<T, N> x_pack = load<T, N>(x, row * columns + c);
      const Pack<T, N> dy_pack = load<T, N>(dy, row * columns + c);
      const Pack<T, N> of_gamma = load<T, N>(gamma, c);
      Pack<T, N> result = load<T, N>(dx, row * columns + c);
      for (int n = 0; n < N; ++n) result.at[n] = gradient.added(x_pack.at[n], dy_pack.at[n], of_gamma.at[n], result.at[n]);
      store<T, N>(dx, row * columns + c, result);
    }
  }
  if (blockDim.x != 32) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (Row::column(k) >= columns) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        dgamma_part[Row::column(k) + n] = dgamma[k][n];
        dbeta_part[Row::column(k) + n] = dbeta[k][n];
      }
    }
    return;
  }
  // The warps of a block, one after the other.
  constexpr int most_columns = held * 32 * N;
  __shared__ A sums[2][most_columns];
  for (unsigned y = 0; y < blockDim.y; ++y) {
    if (threadIdx.y == y) {
#pragma unroll
      for (int k = 0; k < held; ++k) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const std::int64_t c = Row::column(k) + n;
          sums[0][c] = y == 0 ? dgamma[k][n] : sums[0][c] + dgamma[k][n];
          sums[1][c] = y == 0 ? dbeta[k][n] : sums[1][c] + dbeta[k][n];
        }
      }
    }
    __syncthreads();
  }
  for (std::int64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < columns; c += blockDim.x * blockDim.y) {
    dgamma_part[c] = sums[0][c];
    dbeta_part[c] = sums[1][c];
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon,
                                     const Tensor& y, const Tensor& mean, const Tensor& rstd, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();
    const std::int64_t columns = x.columns();
    if (rows == 0) return;
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const dim3 block = row_block(divided_up(columns, N), HeldRow<T, N>::held, most_forward_threads);
      launch("normalize rows", forward_kernel<T, N>, row_blocks(rows, block), block, stream, x.raw(), gamma.raw(),
             beta.raw(), static_cast<A>(epsilon), rows, columns, y.raw(), mean.data<A>(), rstd.data<A>());
    };
    constexpr int pack = 16 / sizeof(T);
    if (rows_of_packs(columns, pack, x.raw(), gamma.raw(), beta.raw(), y.raw())) {
      run(std::integral_constant<int, pack>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  });
}

void CudaKernels::layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                                      const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta,
                                      GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();
    const std::int64_t columns = x.columns();
    if (rows == 0 || columns == 0) return;
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const dim3 block = row_block(divided_up(columns, N), HeldRow<T, N>::held, most_backward_threads);
      // One for each multiprocessor, or 256 threads: that is what their registers allow, and each leaves a part.
      const unsigned blocks = blocks_for(divided_up(rows, block.y), static_cast<int>(256 / (block.x * block.y)));
      const Scratch parts(static_cast<std::size_t>(blocks) * 2 * static_cast<std::size_t>(columns) * sizeof(A), stream);
      launch("compute the gradient of normalized rows", backward_kernel<T, N>, blocks, block, stream, x.raw(), gamma.raw(),
             mean.data<A>(), rstd.data<A>(), dy.raw(), rows, columns, dx.raw(), parts.as<A>());
      launch_add_partial_sums<A>(parts.as<A>(), blocks, 2 * columns, dgamma.data<A>(), columns, stream);
      launch_add_partial_sums<A>(parts.as<A>() + columns, blocks, 2 * columns, dbeta.data<A>(), columns, stream);
    };
    constexpr int pack = 16 / sizeof(T);
    if (rows_of_packs(columns, pack, x.raw(), gamma.raw(), dy.raw(), dx.raw())) {
      run(std::integral_constant<int, pack>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace stretto
