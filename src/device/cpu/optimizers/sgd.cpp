#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/optimizers/sgd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

// T is the type of parameter. If T is the accumulator type, parameter and master are the same array.
template <bool has_momentum, class T, class G, class A = Accumulator<T>>
void descend(const SGDStep& options, const G* gradient, A* master, A* b_array, T* parameter, std::int64_t count) {
  const AccumulatorTag<T> d;
  const auto constant = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const auto rate = constant(options.lr);
  const auto momentum = constant(options.momentum);
  const auto decay = constant(options.weight_decay);
  const auto gradient_scale = constant(options.gradient_scale);
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    auto p = load(d, master + i, lanes);
    auto b = hn::MulAdd(decay, p, hn::Mul(load(d, gradient + i, lanes), gradient_scale));
    if constexpr (has_momentum) {
      b = hn::MulAdd(momentum, load(d, b_array + i, lanes), b);
      store(d, b, b_array + i, lanes);
    }
    p = hn::NegMulAdd(rate, b, p);
    store(d, p, master + i, lanes);
    if constexpr (!std::is_same_v<T, A>) store(d, p, parameter + i, lanes);
  });
}

}  // namespace

void sgd_simd(const SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
              const Tensor& parameter) {
  with_compute_type(parameter.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    with_gradient_type<T>(gradient.dtype(), [&]<class G>(G) {
      const auto step = [&]<bool has_momentum>(A* b_array) {
        descend<has_momentum>(options, gradient.data<G>(), master.data<A>(), b_array, parameter.data<T>(), parameter.size());
      };
      b ? step.template operator()<true>(b.data<A>()) : step.template operator()<false>(nullptr);
    });
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(sgd_simd);

void sgd(const SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b, const Tensor& parameter) {
  STRETTO_DISPATCH(sgd_simd)(options, gradient, master, b, parameter);
}

}  // namespace stretto::kernels::cpu
#endif
