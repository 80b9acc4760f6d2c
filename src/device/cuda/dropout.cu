// Dropout: each thread draws for a pack of consecutive elements of a row.
#include "core/draws.hpp"
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"

namespace stretto {
namespace gpu_code {
namespace {

template <class T>
struct Drop {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 2;

  const void* x;
  const std::int64_t* draws;
  void* out;
  std::int64_t columns, first_column;
  std::uint64_t number;
  std::uint32_t below;
  Accumulator<T> factor;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<T, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const std::int64_t at = i + u * step, column = column_of(at, columns), row = (at - column) / columns;
      const kernels::DrawKey key = kernels::dropout_key(draws[row], number);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const bool keeps = kernels::draw(key, static_cast<std::uint32_t>(first_column + column + w)) >= below;
        // Products by 0 and 1, as on the host.
        packs[u].at[w] = rounded<T>(product(product(widened<T>(packs[u].at[w]), factor), Accumulator<T>(keeps ? 1 : 0)));
      }
      store<T, W>(out, at, packs[u]);
    }
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::dropout(const kernels::Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out,
                          GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    Range range(x.size(), Drop<T>::pack, out.raw(), sizeof(T));
    range.also(x.raw(), sizeof(T));
    range.in_rows_of(x.columns());
    const Drop<T> body{x.raw(),
                       draws.data<std::int64_t>(),
                       out.raw(),
                       x.columns(),
                       options.first_column,
                       options.number,
                       kernels::dropped_below(options.probability),
                       static_cast<Accumulator<T>>(1 / (1 - options.probability))};
    for_each_element("drop elements", range, body, stream);
  });
}

}  // namespace stretto
