#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/optimizers/adamw.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

// T is the type of parameter. If T is the accumulator type, parameter and master are the same array.
template <class T, class G, class A = Accumulator<T>>
void step(const AdamWStep& options, const G* gradient, A* master, A* m_array, A* v_array, T* parameter, std::int64_t count) {
  const AccumulatorTag<T> d;
  const auto constant = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const auto steps = static_cast<double>(options.step);
  const auto decay = constant(options.lr * options.weight_decay);
  const auto beta1 = constant(options.beta1);
  const auto beta2 = constant(options.beta2);
  const auto rest1 = constant(1 - options.beta1);
  const auto rest2 = constant(1 - options.beta2);
  // Divides by the constants c1 and c2 once, here: division is the slowest operation of a vector unit.
  const auto rate = constant(options.lr / (1 - std::pow(options.beta1, steps)));
  const auto correction2 = constant(1 / (1 - std::pow(options.beta2, steps)));
  const auto epsilon = constant(options.epsilon);
  const auto gradient_scale = constant(options.gradient_scale);
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const auto g = hn::Mul(load(d, gradient + i, lanes), gradient_scale);
    auto p = load(d, master + i, lanes);
    p = hn::NegMulAdd(decay, p, p);
    const auto m = hn::MulAdd(beta1, load(d, m_array + i, lanes), hn::Mul(rest1, g));
    const auto v = hn::MulAdd(beta2, load(d, v_array + i, lanes), hn::Mul(rest2, hn::Mul(g, g)));
    const auto deviation = hn::Add(hn::Sqrt(hn::Mul(v, correction2)), epsilon);
    p = hn::NegMulAdd(rate, hn::Div(m, deviation), p);
    store(d, m, m_array + i, lanes);
    store(d, v, v_array + i, lanes);
    store(d, p, master + i, lanes);
    if constexpr (!std::is_same_v<T, A>) store(d, p, parameter + i, lanes);
  });
}

}  // namespace

void adamw_simd(const AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& parameter) {
  with_compute_type(parameter.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    with_gradient_type<T>(gradient.dtype(), [&]<class G>(G) {
      step(options, gradient.data<G>(), master.data<A>(), m.data<A>(), v.data<A>(), parameter.data<T>(), parameter.size());
    });
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(adamw_simd);

void adamw(const AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m, const Tensor& v,
           const Tensor& parameter) {
  STRETTO_DISPATCH(adamw_simd)(options, gradient, master, m, v, parameter);
}

}  // namespace stretto::kernels::cpu
#endif
