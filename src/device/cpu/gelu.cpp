#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/gelu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/exp-inl.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

// With u = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh u) / 2 = 1 / (1 + exp(-2u)): one exponential, without loss of accuracy
// near zero or where y vanishes. x is bounded: beyond the bound this gate is 0 or 1 in every significant digit, and within
// it exp(-2u) is a normal number.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

constexpr double cubic = 0.044715;
constexpr double linear_log2 = 2.3022081981443249;  // 2 sqrt(2/pi) log2(e)
constexpr double linear = 1.5957691216057308;       // 2 sqrt(2/pi)

template <class D>
struct Exponential {
  hn::Vec<D> value;   // exp(-2u)
  hn::Vec<D> x;       // limited to the bound
  hn::Vec<D> square;  // of this x
};

template <class D>
HWY_INLINE Exponential<D> exponential(D d, hn::Vec<D> x) {
  using A = hn::TFromD<D>;
  const auto bound = hn::Set(d, sizeof(A) == 4 ? A{10} : A{20});
  const auto bounded = at_least(hn::Neg(bound), at_most(bound, x));
  const auto square = hn::Mul(bounded, bounded);
  const auto factor =
      hn::MulAdd(square, hn::Set(d, static_cast<A>(-linear_log2 * cubic)), hn::Set(d, static_cast<A>(-linear_log2)));
  return {exp2_of_product(d, bounded, factor), bounded, square};
}

template <class D>
HWY_INLINE hn::Vec<D> gelu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, hn::TFromD<D>{1}), exponential(d, x).value));
}

// With the gate g = 1 / (1 + exp(-2u)): y' = g + x g (1 - g) (2u)', and 1 - g = g exp(-2u).
template <class D>
HWY_INLINE hn::Vec<D> gelu_derivative(D d, hn::Vec<D> x) {
  using A = hn::TFromD<D>;
  const auto one = hn::Set(d, A{1});
  const auto e = exponential(d, x);
  const auto g = hn::Div(one, hn::Add(one, e.value));
  const auto slope =
      hn::MulAdd(e.square, hn::Set(d, static_cast<A>(3 * linear * cubic)), hn::Set(d, static_cast<A>(linear)));
  const auto x_slope_e = hn::Mul(hn::Mul(e.x, slope), hn::Mul(e.value, g));
  return hn::MulAdd(x_slope_e, g, g);
}

template <class T>
void forward(const T* x, T* y, std::int64_t count) {
  const AccumulatorTag<T> d;
  for_each_vector(d, count,
                  [&](std::int64_t i, auto lanes) HWY_ATTR { store(d, gelu(d, load(d, x + i, lanes)), y + i, lanes); });
}

template <class T>
void backward(const T* x, const T* dy, T* dx, std::int64_t count) {
  const AccumulatorTag<T> d;
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const auto derivative = gelu_derivative(d, load(d, x + i, lanes));
    store(d, hn::Mul(load(d, dy + i, lanes), derivative), dx + i, lanes);
  });
}

template <class T>
void forward_with_bias(T* x, const T* bias, T* y, std::int64_t rows, std::int64_t columns) {
  const AccumulatorTag<T> d;
  for (std::int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
      const auto sum = hn::Add(load(d, x + c, lanes), load(d, bias + c, lanes));
      store(d, sum, x + c, lanes);
      store(d, gelu(d, rounded_to<T>(d, sum)), y + c, lanes);  // of the rounded sum, which backward will read
    });
  }
}

}  // namespace

void gelu_forward_simd(const Tensor& x, const Tensor& y) {
  with_compute_type(x.dtype(), [&]<class T>(T) { forward(x.data<T>(), y.data<T>(), x.size()); });
}

void gelu_backward_simd(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_compute_type(x.dtype(), [&]<class T>(T) { backward(x.data<T>(), dy.data<T>(), dx.data<T>(), x.size()); });
}

void add_bias_gelu_simd(const Tensor& x, const Tensor& bias, const Tensor& y) {
  with_compute_type(x.dtype(),
                    [&]<class T>(T) { forward_with_bias(x.data<T>(), bias.data<T>(), y.data<T>(), x.rows(), x.columns()); });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(gelu_forward_simd);
HWY_EXPORT(gelu_backward_simd);
HWY_EXPORT(add_bias_gelu_simd);

void gelu_forward(const Tensor& x, const Tensor& y) { STRETTO_DISPATCH(gelu_forward_simd)(x, y); }

void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) { STRETTO_DISPATCH(gelu_backward_simd)(x, dy, dx); }

void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y) {
  STRETTO_DISPATCH(add_bias_gelu_simd)(x, bias, y);
}

}  // namespace stretto::kernels::cpu
#endif
