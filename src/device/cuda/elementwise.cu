// Conversions, sums and biases.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"
#include "device/element_types.hpp"

namespace stretto {
namespace gpu_code {
namespace {

// f64 is converted to narrow types by way of f32.
template <class To, class A>
__device__ inline Raw<To> rounded_from(A value) {
  if constexpr (std::is_same_v<To, double>) {
    return static_cast<double>(value);
  } else {
    return rounded<To>(static_cast<float>(value));
  }
}

template <class From>
struct Convert {
  static constexpr int pack = 8;
  static constexpr int together = sizeof(Raw<From>) == 8 ? 1 : 2;
  using A = Accumulator<From>;

  const void* x;
  DType to;
  void* out;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<From, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<From, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      switch (to) {
        case DType::f64: put<double>(i + u * step, packs[u]); break;
        case DType::f32: put<float>(i + u * step, packs[u]); break;
        case DType::bf16: put<bf16>(i + u * step, packs[u]); break;
        case DType::f16: put<f16>(i + u * step, packs[u]); break;
        case DType::f8e4m3: put<f8e4m3>(i + u * step, packs[u]); break;
        case DType::f8e5m2: put<f8e5m2>(i + u * step, packs[u]); break;
        default: break;
      }
    }
  }
  template <class To, int W>
  __device__ void put(std::int64_t i, const Pack<From, W>& pack_of_x) const {
    if constexpr (!std::is_same_v<From, To>) {
      Pack<To, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.at[w] = rounded_from<To>(widened<From>(pack_of_x.at[w]));
      store<To, W>(out, i, result);
    }
  }
};

template <class T>
struct AddBias {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 4;

  void* x;
  const void* bias;
  std::int64_t columns;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<T, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Pack<T, W> of_columns = load<T, W>(bias, column_of(i + u * step, columns));
#pragma unroll
      for (int w = 0; w < W; ++w) packs[u].at[w] = rounded<T>(widened<T>(packs[u].at[w]) + widened<T>(of_columns.at[w]));
      store<T, W>(x, i + u * step, packs[u]);
    }
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::convert(DType from, const void* x, DType to, void* out, std::int64_t count, GpuStream stream) {
  with_float_type(to, [](auto) {});
  with_float_type(from, [&]<class From>(From) {
    if (count <= 0) return;
    if (from == to) {
      check_cuda(
          cudaMemcpyAsync(out, x, static_cast<std::size_t>(count) * sizeof(From), cudaMemcpyDeviceToDevice, cuda(stream)),
          "copy memory");
      return;
    }
    Range range(count, Convert<From>::pack, out, size_of(to));
    range.also(x, sizeof(From));
    for_each_element("convert elements", range, Convert<From>{x, to, out}, stream);
  });
}

void CudaKernels::add(const Tensor& a, const Tensor& b, const Tensor& out, GpuStream stream) {
  const void* const sources[] = {a.raw(), b.raw()};
  reduce_all(ReduceOp::sum, a.dtype(), sources, 2, out.raw(), a.size(), 1, stream);
}

void CudaKernels::scale(const Tensor& x, double factor, GpuStream stream) {
  kernels::with_compute_type(x.dtype(),
                             [&]<class T>(T) { multiply(dtype_of<T>, x.raw(), x.raw(), x.size(), factor, stream); });
}

void CudaKernels::add_bias(const Tensor& x, const Tensor& bias, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    Range range(x.size(), AddBias<T>::pack, x.raw(), sizeof(T));
    range.also(bias.raw(), sizeof(T));
    range.in_rows_of(x.columns());
    for_each_element("add a bias", range, AddBias<T>{x.raw(), bias.raw(), x.columns()}, stream);
  });
}

}  // namespace stretto
