// Rotary positions: a thread turns a pack of points of one head.
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/heads.cuh"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int threads = 256;

// direction: 1, or -1 for the inverse.
template <class T, int N, class A = Accumulator<T>>
__global__ void __launch_bounds__(threads) rotary_kernel(const Heads x, std::uint32_t heads, const std::int32_t* positions,
                                                         const A* table, A direction, std::int64_t tokens, const Heads out) {
  const std::uint32_t half = x.size / 2;
  const std::uint32_t packs = half / N;
  const std::int64_t items = tokens * heads * packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < items; i += stride) {
    const InGroups of_token = in_groups(i, heads * packs);
    const std::int64_t token = of_token.group;
    const std::uint32_t head = of_token.item / packs;
    const std::uint32_t pair = of_token.item % packs * N;
    const std::int64_t from = x.at(token, head) + pair;
    const Numbers<T, N> a = widened(load<T, N>(x.first, from));
    const Numbers<T, N> b = widened(load<T, N>(x.first, from + half));
    const std::int64_t row = std::int64_t{positions[token]} * 2 * half + pair;
    const Numbers<A, N> cosines = widened(load<A, N>(table, row));
    const Numbers<A, N> sines = widened(load<A, N>(table, row + half));
    Pack<T, N> first;
    Pack<T, N> second;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const A sine = product(sines.at[n], direction);
      first.at[n] = rounded<T>(fused(-b.at[n], sine, product(a.at[n], cosines.at[n])));
      second.at[n] = rounded<T>(fused(a.at[n], sine, product(b.at[n], cosines.at[n])));
    }
    const std::int64_t to = out.at(token, head) + pair;
    store<T, N>(out.first, to, first);
    store<T, N>(out.first, to + half, second);
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::rotary(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                         const kernels::TokenHeads& out, bool inverse, GpuStream stream) {
  const std::int64_t tokens = positions.size();
  const std::int64_t half = table.columns();
  if (tokens == 0) return;
  kernels::with_compute_type(x.tensor.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const Heads from(x, 2 * half);
    const Heads to(out, 2 * half);
    const auto run = [&](auto packs) {
      constexpr int N = decltype(packs)::value;
      const unsigned blocks = blocks_for(divided_up(tokens * heads * (half / N), threads), 16);
      launch("turn heads by their positions", rotary_kernel<T, N>, blocks, threads, stream, from,
             static_cast<std::uint32_t>(heads), positions.data<std::int32_t>(), table.data<A>(), inverse ? A{-1} : A{1},
             tokens, to);
    };
    constexpr int pack = 16 / sizeof(T);
    if (from.consist_of_packs(half, pack) && to.consist_of_packs(half, pack) &&
        reinterpret_cast<std::uintptr_t>(table.raw()) % 16 == 0) {
      run(std::integral_constant<int, pack>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace stretto
