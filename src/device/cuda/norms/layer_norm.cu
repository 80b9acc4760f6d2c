// A row is read once: its packs stay in registers for the second pass, which computes the variance, and for the third.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/partial_sums.cuh"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int most_forward_threads = 1024;

template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_forward_threads)
    forward_kernel(const void* x, const void* gamma, const void* beta, A epsilon, std::int64_t rows, std::int64_t columns,
                   void* y, A* mean_out, A* rstd_out) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const HeldRow<T, N> held(x, row, columns);
    A sum = 0;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
#pragma unroll
      for (int n = 0; n < N; ++n) sum += numbers.at[n];
    });
    const A mean = over_row(sum, Plus()) / static_cast<A>(columns);
    // A second pass, since the mean square minus the squared mean would cancel where the mean is large.
    A squares = 0;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A centred = numbers.at[n] - mean;
        squares = fused(centred, centred, squares);
      }
    });
    const A rstd = A{1} / sqrt(over_row(squares, Plus()) / static_cast<A>(columns) + epsilon);
    held.each([&](std::int64_t c, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
      const Numbers<T, N> of_gamma = widened(load<T, N>(gamma, c));
      const Numbers<T, N> of_beta = widened(load<T, N>(beta, c));
      Pack<T, N> result;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A normal = product(numbers.at[n] - mean, rstd);
        result.at[n] = rounded<T>(fused(normal, of_gamma.at[n], of_beta.at[n]));
      }
      store<T, N>(y, row * columns + c, result);
    });
    if (threadIdx.x == 0) {
      mean_out[row] = mean;
      rstd_out[row] = rstd;
    }
  }
}

// In backward, each thread holds packs of x, dy and dx and two sums for each of their columns. With this number of threads,
// each has the registers that it needs, and there are enough threads that some load while others compute.
enum class Rows { of_a_warp, of_a_block, longer };
template <Rows kind>
constexpr int backward_held = kind == Rows::of_a_block ? 2 : 3;
template <Rows kind>
constexpr int backward_threads = kind == Rows::of_a_block ? 768 : 512;  // on a multiprocessor

// With normal = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - normal mean(g normal)). Each thread keeps the
// sums for dgamma and dbeta of its columns over all of its rows. parts receives their sums over the block: for each block,
// the columns of dgamma and then those of dbeta. share is 1 / columns, the weight of a column in a mean.
template <class T, int N, Rows kind, class A = Accumulator<T>>
__global__ void __launch_bounds__(backward_threads<kind>)
    backward_kernel(const void* x, const void* gamma, const A* mean_of_rows, const A* rstd_of_rows, const void* dy,
                    std::int64_t rows, std::int64_t columns, A share, void* dx, A* parts) {
  constexpr int held = backward_held<kind>;
  using Row = HeldRow<T, N, held>;
  A* const dgamma_part = parts + static_cast<std::int64_t>(blockIdx.x) * 2 * columns;
  A* const dbeta_part = dgamma_part + columns;
  A dgamma[held][N] = {};
  A dbeta[held][N] = {};
  // Sums that do not fit into registers are kept in parts.
  const auto each_further = [&](auto visit) {
    if constexpr (kind == Rows::longer) {
      for (std::int64_t c = Row::column(held); c < columns; c += static_cast<std::int64_t>(blockDim.x) * N) visit(c);
    }
  };
  each_further([&](std::int64_t c) {
    for (int n = 0; n < N; ++n) dgamma_part[c + n] = dbeta_part[c + n] = 0;
  });
  // All threads of a block have the same row; written so that the compiler knows it.
  const std::int64_t stride = kind == Rows::of_a_warp ? row_stride() : gridDim.x;
  for (std::int64_t row = kind == Rows::of_a_warp ? first_row() : blockIdx.x; row < rows; row += stride) {
    if constexpr (kind == Rows::of_a_block) {  // a multiprocessor has few of these at a time
      if (const std::int64_t next = row + stride; next < rows) {
        prefetch_row<T>(x, next, columns);
        prefetch_row<T>(dy, next, columns);
        prefetch_row<T>(dx, next, columns);
      }
    }
    const Row of_x(x, row, columns);
    const Row of_dy(dy, row, columns);
    const Row of_dx(dx, row, columns);
    const A mean = mean_of_rows[row];
    const A rstd = rstd_of_rows[row];
    A sums[2] = {};  // of g, and of g normal
    const auto add = [&](std::int64_t c, const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, A* of_dgamma, A* of_dbeta) {
      const Numbers<T, N> of_gamma = widened(load<T, N>(gamma, c));
      const Numbers<T, N> xs = widened(x_pack);
      const Numbers<T, N> dys = widened(dy_pack);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A normal = product(xs.at[n] - mean, rstd);
        of_dgamma[n] = fused(dys.at[n], normal, of_dgamma[n]);
        of_dbeta[n] += dys.at[n];
        const A g = product(dys.at[n], of_gamma.at[n]);
        sums[0] += g;
        sums[1] = fused(g, normal, sums[1]);
      }
    };
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (Row::column(k) < columns) add(Row::column(k), of_x.pack(k), of_dy.pack(k), dgamma[k], dbeta[k]);
    }
    each_further([&](std::int64_t c) {
      add(c, load<T, N>(of_x.begin(), c), load<T, N>(of_dy.begin(), c), dgamma_part + c, dbeta_part + c);
    });
    over_row(sums, Plus());
    const A mean_g = product(sums[0], share);
    const A mean_g_normal = product(sums[1], share);
    const auto finish = [&](std::int64_t c, const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, Pack<T, N> dx_pack) {
      const Numbers<T, N> of_gamma = widened(load<T, N>(gamma, c));
      const Numbers<T, N> xs = widened(x_pack);
      const Numbers<T, N> dys = widened(dy_pack);
      const Numbers<T, N> before = widened(dx_pack);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A normal = product(xs.at[n] - mean, rstd);
        const A change = fused(-normal, mean_g_normal, product(dys.at[n], of_gamma.at[n]) - mean_g);
        dx_pack.at[n] = rounded<T>(fused(change, rstd, before.at[n]));
      }
      store<T, N>(row_of<T>(dx, row, columns), c, dx_pack);
    };
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (Row::column(k) < columns) finish(Row::column(k), of_x.pack(k), of_dy.pack(k), of_dx.pack(k));
    }
    each_further([&](std::int64_t c) {
      finish(c, load<T, N>(of_x.begin(), c), load<T, N>(of_dy.begin(), c), load<T, N>(of_dx.begin(), c));
    });
  }
  if constexpr (kind != Rows::of_a_warp) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (Row::column(k) >= columns) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        dgamma_part[Row::column(k) + n] = dgamma[k][n];
        dbeta_part[Row::column(k) + n] = dbeta[k][n];
      }
    }
  } else {  // the warps of a block add their sums one after the other
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
    const auto run = [&]<int N, Rows kind>() {
      constexpr int threads = backward_threads<kind>;
      const dim3 block = row_block(divided_up(columns, N), backward_held<kind>, threads);
      // Only as many blocks as run at a time, since each leaves a part.
      const unsigned blocks = blocks_for(divided_up(rows, block.y), threads / static_cast<int>(block.x * block.y));
      const Scratch parts(static_cast<std::size_t>(blocks) * 2 * static_cast<std::size_t>(columns) * sizeof(A), stream);
      launch("compute the gradient of normalized rows", backward_kernel<T, N, kind>, blocks, block, stream, x.raw(),
             gamma.raw(), mean.data<A>(), rstd.data<A>(), dy.raw(), rows, columns, A{1} / static_cast<A>(columns), dx.raw(),
             parts.as<A>());
      kernels::with_gradient_type<T>(dgamma.dtype(), [&]<class G>(G) {
        launch_add_partial_sums(parts.as<A>(), blocks, Sums<G, 2>{{dgamma.raw(), dbeta.raw()}}, columns, stream);
      });
    };
    const auto run_packs = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const auto fit = [&]<Rows kind>(int threads) { return divided_up(columns, N) <= threads * backward_held<kind>; };
      if (fit.template operator()<Rows::of_a_warp>(32)) {
        run.template operator()<N, Rows::of_a_warp>();
      } else if (fit.template operator()<Rows::of_a_block>(backward_threads<Rows::of_a_block>)) {
        run.template operator()<N, Rows::of_a_block>();
      } else {
        run.template operator()<N, Rows::longer>();
      }
    };
    constexpr int pack = 16 / sizeof(T);
    if (rows_of_packs(columns, pack, x.raw(), gamma.raw(), dy.raw(), dx.raw())) {
      run_packs(std::integral_constant<int, pack>());
    } else {
      run_packs(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace stretto
