#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/activations/silu_gate.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/activations/activation-inl.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/exp-inl.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

// silu(gate) up, where silu(g) = g s with s = 1 / (1 + exp(-g)). A row of x holds the gates and then as many ups. g is
// bounded: beyond the bound s is 0 or 1 in every significant digit, and within it exp(-g) is a normal number.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

constexpr double log2e = 1.4426950408889634;

template <class D>
HWY_INLINE hn::Vec<D> bound(D d) {
  return hn::Set(d, sizeof(hn::TFromD<D>) == 4 ? 87 : 708);
}

// exp(-g) for g within the bound.
template <class T, class D>
HWY_INLINE Scaled<hn::Vec<D>> exponential(D d, hn::Vec<D> g) {
  return scaled_exp2_of_product<T>(d, g, hn::Set(d, static_cast<hn::TFromD<D>>(-log2e)));
}

template <class T>
void forward(const T* x, T* y, std::int64_t columns) {
  const AccumulatorTag<T> d;
  const auto one = hn::Set(d, Accumulator<T>{1});
  const auto result = [d, one](auto g, auto up) HWY_ATTR {
    const auto e = exponential<T>(d, within(d, bound(d), g));
    return hn::Mul(quotient<T>(d, g, hn::MulAdd(e.mantissa, e.scale, one)), up);
  };
  for_each_of<FourVectors>(d, columns, [&](std::int64_t c, auto which) HWY_ATTR {
    store_next(d, each(result, load_next(d, x + c, which), load_next(d, x + columns + c, which)), y + c, which);
  });
}

// The gradient of up is dy silu(g), that of g is dy up silu'(g), where silu'(g) = s + g s (1 - s) and 1 - s = s exp(-g).
template <class T>
void backward(const T* x, const T* dy, T* dx, std::int64_t columns) {
  const AccumulatorTag<T> d;
  const auto one = hn::Set(d, Accumulator<T>{1});
  const auto bounded = [d](auto g) HWY_ATTR { return at_least(hn::Neg(bound(d)), at_most(bound(d), g)); };  // NaN stays
  const auto exponential_of = [d](auto b) HWY_ATTR {
    const auto scaled = exponential<T>(d, b);
    return hn::Mul(scaled.mantissa, scaled.scale);
  };
  const auto sigmoid = [d, one](auto e) HWY_ATTR { return quotient<T>(d, one, hn::Add(e, one)); };
  const auto of_gate = [](auto b, auto e, auto s, auto up, auto dv)
                           HWY_ATTR { return hn::Mul(hn::Mul(dv, up), hn::MulAdd(hn::Mul(b, s), hn::Mul(e, s), s)); };
  const auto of_up = [](auto g, auto s, auto dv) HWY_ATTR { return hn::Mul(hn::Mul(g, s), dv); };
  for_each_of<TwoVectors>(d, columns, [&](std::int64_t c, auto which) HWY_ATTR {
    const auto g = load_next(d, x + c, which);
    const auto up = load_next(d, x + columns + c, which);
    const auto dv = load_next(d, dy + c, which);
    const auto b = each(bounded, g);
    const auto e = each(exponential_of, b);
    const auto s = each(sigmoid, e);
    store_next(d, each(of_gate, b, e, s, up, dv), dx + c, which);
    store_next(d, each(of_up, g, s, dv), dx + columns + c, which);
  });
}

}  // namespace

void silu_gate_forward_simd(const Tensor& x, const Tensor& y) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    const std::int64_t columns = y.columns();
    const std::int64_t rows = columns > 0 ? y.rows() : 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      forward(x.data<T>() + row * 2 * columns, y.data<T>() + row * columns, columns);
    }
  });
}

void silu_gate_backward_simd(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    const std::int64_t columns = dy.columns();
    const std::int64_t rows = columns > 0 ? dy.rows() : 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      backward(x.data<T>() + row * 2 * columns, dy.data<T>() + row * columns, dx.data<T>() + row * 2 * columns, columns);
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(silu_gate_forward_simd);
HWY_EXPORT(silu_gate_backward_simd);

void silu_gate_forward(const Tensor& x, const Tensor& y) { STRETTO_DISPATCH(silu_gate_forward_simd)(x, y); }

void silu_gate_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  STRETTO_DISPATCH(silu_gate_backward_simd)(x, dy, dx);
}

}  // namespace stretto::kernels::cpu
#endif
