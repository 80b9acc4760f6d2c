// Sums, products, minima and maxima of several arrays, and products with a number.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"
#include "device/cuda/pointers.cuh"
#include "device/element_types.hpp"

namespace stretto {
namespace gpu_code {
namespace {

// Integers are added and multiplied as unsigned integers, which wrap and have the same bits.
template <class A>
struct WrappingOf {
  using type = std::make_unsigned_t<A>;
};
template <>
struct WrappingOf<float> {
  using type = float;
};
template <>
struct WrappingOf<double> {
  using type = double;
};
template <class A>
using Wrapping = typename WrappingOf<A>::type;

struct Add {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
  }
};
struct Multiply {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
  }
};

// Bitwise and, and bitwise or, of equal numbers: they differ only for +0 and -0, in the sign.
__device__ inline float both(float a, float b) { return __uint_as_float(__float_as_uint(a) & __float_as_uint(b)); }
__device__ inline float either(float a, float b) { return __uint_as_float(__float_as_uint(a) | __float_as_uint(b)); }
__device__ inline double both(double a, double b) {
  return __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b));
}
__device__ inline double either(double a, double b) {
  return __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b));
}

// If a or b is NaN, so is the result. +0 is larger than -0.
struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    if constexpr (std::is_floating_point_v<A>) {
      if (a == b) return both(a, b);
      return a < b || b != b ? b : a;
    } else {
      return a < b ? b : a;
    }
  }
};
struct Smaller {
  template <class A>
  __device__ A operator()(A a, A b) const {
    if constexpr (std::is_floating_point_v<A>) {
      if (a == b) return either(a, b);
      return b < a || b != b ? b : a;
    } else {
      return b < a ? b : a;
    }
  }
};

// f32 and f64 divide faster than integers, and their quotients of integers of 8 and 32 bits never round up to the next
// integer.
template <class T>
__device__ inline T divided(T value, std::int64_t divisor) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<T>(static_cast<float>(value) / static_cast<float>(divisor));
  } else if constexpr (sizeof(T) == 4) {
    return static_cast<T>(static_cast<double>(value) / static_cast<double>(divisor));
  } else {
    return value / static_cast<T>(divisor);
  }
}

template <class T>
struct Reduce {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 1;  // the loads of two sources are in flight already
  using A = Accumulator<T>;

  Pointers sources;
  int source_count;
  ReduceOp op;
  void* out;
  std::int64_t divisor;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t /*step*/) const {
    static_assert(U == 1);
    Numbers<T, W> values;
    switch (op) {  // the same for all threads
      case ReduceOp::prod: values = combined<W>(i, Multiply()); break;
      case ReduceOp::min: values = combined<W>(i, Smaller()); break;
      case ReduceOp::max: values = combined<W>(i, Larger()); break;
      default: values = combined<W>(i, Add()); break;
    }
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.at[w] = finished(values.at[w]);
    store<T, W>(out, i, result);
  }

  // The loads of two sources are in flight before one is used; an odd last source is loaded twice.
  template <int W, class Combine>
  __device__ Numbers<T, W> combined(std::int64_t i, Combine combine) const {
    const auto loaded = [&](int s) { return load_words<T, W>(sources[s < source_count ? s : source_count - 1], i); };
    Words<T, W> words = loaded(0);
    Words<T, W> next = loaded(1);
    Numbers<T, W> values = widened(words.pack());
    const auto add = [&](const Words<T, W>& of_source) {
      const Numbers<T, W> terms = widened(of_source.pack());
#pragma unroll
      for (int w = 0; w < W; ++w) values.at[w] = combine(values.at[w], terms.at[w]);
    };
    if (source_count > 1) add(next);
#pragma unroll 1
    for (int s = 2; s < source_count; s += 2) {
      words = loaded(s);
      next = loaded(s + 1);
      add(words);
      if (s + 1 < source_count) add(next);
    }
    return values;
  }

  // Floats are divided before they are rounded; integers wrap first.
  __device__ Raw<T> finished(A value) const {
    if constexpr (std::is_integral_v<T>) {
      const T wrapped = rounded<T>(value);
      return divisor == 1 ? wrapped : divided(wrapped, divisor);
    } else {
      return rounded<T>(divisor == 1 ? value : value / static_cast<A>(divisor));
    }
  }
};

template <class T>
struct MultiplyBy {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 4;

  const void* x;
  void* out;
  Accumulator<T> factor;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<T, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int w = 0; w < W; ++w) packs[u].at[w] = rounded<T>(Multiply()(widened<T>(packs[u].at[w]), factor));
      store<T, W>(out, i + u * step, packs[u]);
    }
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out,
                             std::int64_t count, std::int64_t divisor, GpuStream stream) {
  require(source_count >= 1, "There is nothing to reduce in {} sources; give at least one.", source_count);
  require(divisor >= 1, "Elements cannot be divided by {}; a divisor counts ranks and is at least 1.", divisor);
  require(op <= ReduceOp::premul_sum, "{} is not the number of a reduction; use a ReduceOp.", static_cast<int>(op));
  with_element_type(dtype, [&]<class T>(T) {
    if (count <= 0) return;
    Range range(count, Reduce<T>::pack, out, sizeof(T));
    for (int s = 0; s < source_count; ++s) range.also(sources[s], sizeof(T));
    const PointersFor pointers(sources, source_count, stream);
    for_each_element("reduce arrays", range, Reduce<T>{pointers.get(), source_count, op, out, divisor}, stream);
  });
}

void CudaKernels::multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor, GpuStream stream) {
  with_element_type(dtype, [&]<class T>(T) {
    // Integers are multiplied as unsigned integers of the same size, which have the same bits.
    using U = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
    MultiplyBy<U> body{x, out, {}};
    if constexpr (std::is_integral_v<T>) {
      body.factor = static_cast<U>(to_integer<T>(factor));
    } else {
      body.factor = static_cast<Accumulator<T>>(factor);
    }
    Range range(count, MultiplyBy<U>::pack, out, sizeof(T));
    range.also(x, sizeof(T));
    for_each_element("multiply elements", range, body, stream);
  });
}

}  // namespace stretto
