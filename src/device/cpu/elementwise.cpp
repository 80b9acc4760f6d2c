#include "stretto/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T, class Combine>
void combine_elements(const T* a, const T* b, T* out, std::int64_t count, Combine combine) {
  const AccumulatorTag<T> d;
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    store(d, combine(load(d, a + i, lanes), load(d, b + i, lanes)), out + i, lanes);
  });
}

template <class T>
void reduce_elements(ReduceOp op, const T* a, const T* b, T* out, std::int64_t count) {
  switch (op) {
    case ReduceOp::sum: return combine_elements(a, b, out, count, [](auto x, auto y) HWY_ATTR { return hn::Add(x, y); });
    case ReduceOp::prod: return combine_elements(a, b, out, count, [](auto x, auto y) HWY_ATTR { return hn::Mul(x, y); });
    case ReduceOp::min: return combine_elements(a, b, out, count, [](auto x, auto y) HWY_ATTR { return minimum(x, y); });
    case ReduceOp::max: return combine_elements(a, b, out, count, [](auto x, auto y) HWY_ATTR { return maximum(x, y); });
  }
}

template <class From, class To>
void convert_elements(const From* from, To* to, std::int64_t count) {
  constexpr bool wide = std::is_same_v<From, double> || std::is_same_v<To, double>;
  const hn::ScalableTag<std::conditional_t<wide, double, float>> d;
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR { store(d, load(d, from + i, lanes), to + i, lanes); });
}

template <class T>
void scale_elements(T* x, std::int64_t count, double factor) {
  const AccumulatorTag<T> d;
  const auto f = hn::Set(d, static_cast<Accumulator<T>>(factor));
  for_each_vector(d, count,
                  [&](std::int64_t i, auto lanes) HWY_ATTR { store(d, hn::Mul(load(d, x + i, lanes), f), x + i, lanes); });
}

template <class T>
void add_bias_rows(T* x, const T* bias, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    T* const to = x + row * columns;
    combine_elements(to, bias, to, columns, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
  }
}

}  // namespace

void reduce_simd(ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  with_element_type(dtype, [&]<class T>(T) {
    reduce_elements(op, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), count);
  });
}

void convert_simd(const Tensor& from, const Tensor& out) {
  with_element_type(from.dtype(), [&]<class From>(From) {
    with_element_type(out.dtype(), [&]<class To>(To) { convert_elements(from.data<From>(), out.data<To>(), from.size()); });
  });
}

void scale_simd(const Tensor& x, double factor) {
  with_compute_type(x.dtype(), [&]<class T>(T) { scale_elements(x.data<T>(), x.size(), factor); });
}

void add_bias_simd(const Tensor& x, const Tensor& bias) {
  with_compute_type(x.dtype(), [&]<class T>(T) { add_bias_rows(x.data<T>(), bias.data<T>(), x.rows(), x.columns()); });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels {

HWY_EXPORT(reduce_simd);
HWY_EXPORT(convert_simd);
HWY_EXPORT(scale_simd);
HWY_EXPORT(add_bias_simd);

void reduce(ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(reduce_simd)(op, dtype, a, b, out, count);
}

void convert(const Tensor& from, const Tensor& out) {
  check_holds("convert", "out", out, out.dtype(), from.size());
  if (from.dtype() != out.dtype()) {
    HWY_DYNAMIC_DISPATCH(convert_simd)(from, out);
  } else if (from.raw() != out.raw()) {
    out.copy_from(from);
  }
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_holds("add", "b", b, a.dtype(), a.size());
  check_holds("add", "out", out, a.dtype(), a.size());
  reduce(ReduceOp::sum, a.dtype(), a.raw(), b.raw(), out.raw(), a.size());
}

void scale(const Tensor& x, double factor) { HWY_DYNAMIC_DISPATCH(scale_simd)(x, factor); }

void add_bias(const Tensor& x, const Tensor& bias) {
  check_holds("add_bias", "bias", bias, x.dtype(), x.columns());
  HWY_DYNAMIC_DISPATCH(add_bias_simd)(x, bias);
}

}  // namespace stretto::kernels
#endif
