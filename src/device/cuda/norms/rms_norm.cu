// RMS norms of heads, and of rows, which are one head each. Some threads of a warp take a short row, a block takes a long
// one.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/heads.cuh"
#include "device/cuda/partial_sums.cuh"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int most_threads = 512;
constexpr int held_packs = 2;  // of a thread and an array

template <class T, int N>
using Row = HeldRow<T, N, held_packs>;

// The block for rows of so many packs; see row_block(). A short row takes a power of two of a warp's threads.
dim3 norm_block(std::int64_t packs) {
  if (packs > 16 * held_packs) return row_block(packs, held_packs, most_threads);
  unsigned threads = 4;
  while (threads * held_packs < packs) threads *= 2;
  return dim3(threads, 256 / threads);
}

// As over_row(). All threads of the block call it.
template <class A>
__device__ inline A sum_over_row(A value) {
  if (blockDim.x >= 32) return over_row(value, Plus());
  for (unsigned distance = blockDim.x / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, static_cast<int>(distance));
  return value;
}

template <class T>
__device__ inline std::uint8_t* head_of(const Heads& of, std::int64_t row, std::uint32_t heads) {
  const InGroups place = in_groups(row, heads);
  return static_cast<std::uint8_t*>(of.first) + of.at(place.group, place.item) * static_cast<std::int64_t>(sizeof(Raw<T>));
}

// Calls visit(row) for the rows of this thread, and equally often in all threads of the block: behind the last row, for a
// row that is not there.
template <class Visit>
__device__ inline void for_each_row(std::int64_t rows, Visit visit) {
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.y; first < rows; first += row_stride())
    visit(first + threadIdx.y);
}

template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads) forward_kernel(const Heads x, std::uint32_t heads, const void* gamma,
                                                               A epsilon, std::int64_t rows, const Heads y, A* rstd_out) {
  for_each_row(rows, [&](std::int64_t row) {
    const std::int64_t columns = row < rows ? x.size : 0;
    const Row<T, N> held(head_of<T>(x, row, heads), 0, columns);
    A squares = 0;
    held.each([&](std::int64_t, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
#pragma unroll
      for (int n = 0; n < N; ++n) squares = fused(numbers.at[n], numbers.at[n], squares);
    });
    const A rstd = A{1} / sqrt(sum_over_row(squares) / static_cast<A>(x.size) + epsilon);
    std::uint8_t* const to = head_of<T>(y, row, heads);
    held.each([&](std::int64_t c, const Pack<T, N>& pack) {
      const Numbers<T, N> numbers = widened(pack);
      const Numbers<T, N> of_gamma = widened(load<T, N>(gamma, c));
      Pack<T, N> result;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A normal = widened<T>(rounded<T>(product(numbers.at[n], rstd)));
        result.at[n] = rounded<T>(product(normal, of_gamma.at[n]));
      }
      store<T, N>(to, c, result);
    });
    if (threadIdx.x == 0 && row < rows) rstd_out[row] = rstd;
  });
}

// With normal = x rstd and g = dy gamma: dx (+)= rstd (g - normal mean(g normal)). Each thread keeps the sums for dgamma of
// its columns over all of its rows; parts receives their sums over the block. share is 1 / columns.
template <class T, int N, bool adds, class A = Accumulator<T>>
__global__ void __launch_bounds__(most_threads)
    backward_kernel(const Heads x, std::uint32_t heads, const void* gamma, const A* rstd_of_rows, const Heads dy,
                    std::int64_t rows, A share, const Heads dx, A* parts) {
  const std::int64_t all_columns = x.size;
  A* const part = parts + static_cast<std::int64_t>(blockIdx.x) * all_columns;
  A dgamma[held_packs][N] = {};
  // Columns that no thread holds: there is one row a block, and their sums are kept in part.
  const auto each_further = [&](std::int64_t columns, auto visit) {
    for (std::int64_t c = Row<T, N>::column(held_packs); c < columns; c += static_cast<std::int64_t>(blockDim.x) * N)
      visit(c);
  };
  each_further(all_columns, [&](std::int64_t c) {
    for (int n = 0; n < N; ++n) part[c + n] = 0;
  });
  for_each_row(rows, [&](std::int64_t row) {
    const std::int64_t columns = row < rows ? all_columns : 0;
    const Row<T, N> of_x(head_of<T>(x, row, heads), 0, columns);
    const Row<T, N> of_dy(head_of<T>(dy, row, heads), 0, columns);
    std::uint8_t* const to = head_of<T>(dx, row, heads);
    const Row<T, N> of_dx(to, 0, adds ? columns : 0);
    const A rstd = row < rows ? rstd_of_rows[row] : A{0};
    A sum = 0;
    const auto add = [&](std::int64_t c, const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, A* of_dgamma) {
      const Numbers<T, N> of_gamma = widened(load<T, N>(gamma, c));
      const Numbers<T, N> xs = widened(x_pack);
      const Numbers<T, N> dys = widened(dy_pack);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A dy_normal = product(dys.at[n], product(xs.at[n], rstd));
        of_dgamma[n] += dy_normal;
        sum = fused(dy_normal, of_gamma.at[n], sum);
      }
    };
#pragma unroll
    for (int k = 0; k < held_packs; ++k) {
      if (Row<T, N>::column(k) < columns) add(Row<T, N>::column(k), of_x.pack(k), of_dy.pack(k), dgamma[k]);
    }
    each_further(columns,
                 [&](std::int64_t c) { add(c, load<T, N>(of_x.begin(), c), load<T, N>(of_dy.begin(), c), part + c); });
    const A mean = product(sum_over_row(sum), share);
    const auto finish = [&](std::int64_t c, const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, Pack<T, N> dx_pack) {
      const Numbers<T, N> of_gamma = widened(load<T, N>(gamma, c));
      const Numbers<T, N> xs = widened(x_pack);
      const Numbers<T, N> dys = widened(dy_pack);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A change = fused(-product(xs.at[n], rstd), mean, product(dys.at[n], of_gamma.at[n]));
        dx_pack.at[n] = rounded<T>(adds ? fused(change, rstd, widened<T>(dx_pack.at[n])) : product(change, rstd));
      }
      store<T, N>(to, c, dx_pack);
    };
#pragma unroll
    for (int k = 0; k < held_packs; ++k) {
      if (Row<T, N>::column(k) < columns) finish(Row<T, N>::column(k), of_x.pack(k), of_dy.pack(k), of_dx.pack(k));
    }
    each_further(columns, [&](std::int64_t c) {
      finish(c, load<T, N>(of_x.begin(), c), load<T, N>(of_dy.begin(), c), load<T, N>(to, c));
    });
  });
  if (blockDim.y == 1) {
#pragma unroll
    for (int k = 0; k < held_packs; ++k) {
      if (Row<T, N>::column(k) >= all_columns) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) part[Row<T, N>::column(k) + n] = dgamma[k][n];
    }
    return;
  }
  // The rows of a block add their sums one after the other.
  __shared__ A sums[held_packs * 32 * N];
  for (unsigned y = 0; y < blockDim.y; ++y) {
    if (threadIdx.y == y) {
#pragma unroll
      for (int k = 0; k < held_packs; ++k) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const std::int64_t c = Row<T, N>::column(k) + n;
          sums[c] = y == 0 ? dgamma[k][n] : sums[c] + dgamma[k][n];
        }
      }
    }
    __syncthreads();
  }
  for (std::int64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < all_columns; c += blockDim.x * blockDim.y)
    part[c] = sums[c];
}

// Calls run(N) with the number of elements of a pack that all of the heads and gamma consist of.
template <class T, class Run, class... Places>
void with_packs(const Tensor& gamma, Run run, const Places&... places) {
  constexpr int pack = 16 / sizeof(T);
  if (rows_of_packs(gamma.size(), pack, gamma.raw()) && (... && places.consist_of_packs(gamma.size(), pack))) {
    run(std::integral_constant<int, pack>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::rms_norm_forward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon,
                                   const kernels::TokenHeads& y, const Tensor& rstd, GpuStream stream) {
  const std::int64_t rows = rstd.size();
  if (rows == 0) return;
  kernels::with_compute_type(gamma.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const Heads from(x, gamma.size());
    const Heads to(y, gamma.size());
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const dim3 block = norm_block(divided_up(gamma.size(), N));
      launch("normalize heads", forward_kernel<T, N>, row_blocks(rows, block), block, stream, from,
             static_cast<std::uint32_t>(heads), gamma.raw(), static_cast<A>(epsilon), rows, to, rstd.data<A>());
    };
    with_packs<T>(gamma, run, from, to);
  });
}

void CudaKernels::rms_norm_backward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma,
                                    const Tensor& rstd, const kernels::TokenHeads& dy, const kernels::TokenHeads& dx,
                                    bool adds, const Tensor& dgamma, GpuStream stream) {
  const std::int64_t rows = rstd.size();
  const std::int64_t columns = gamma.size();
  if (rows == 0) return;
  kernels::with_compute_type(gamma.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const Heads of_x(x, columns);
    const Heads of_dy(dy, columns);
    const Heads of_dx(dx, columns);
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const dim3 block = norm_block(divided_up(columns, N));
      // Only as many blocks as run at a time, since each leaves a part.
      const unsigned blocks = blocks_for(divided_up(rows, block.y), 1024 / static_cast<int>(block.x * block.y));
      const Scratch parts(static_cast<std::size_t>(blocks) * static_cast<std::size_t>(columns) * sizeof(A), stream);
      launch("compute the gradient of normalized heads", adds ? backward_kernel<T, N, true> : backward_kernel<T, N, false>,
             blocks, block, stream, of_x, static_cast<std::uint32_t>(heads), gamma.raw(), rstd.data<A>(), of_dy, rows,
             A{1} / static_cast<A>(columns), of_dx, parts.as<A>());
      kernels::with_gradient_type<T>(dgamma.dtype(), [&]<class G>(G) {
        launch_add_partial_sums(parts.as<A>(), blocks, Sums<G, 1>{{dgamma.raw()}}, columns, stream);
      });
    };
    with_packs<T>(gamma, run, of_x, of_dy, of_dx);
  });
}

}  // namespace stretto
