#include "device/kernels/frozen_adamw.hpp"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/optimizers/frozen_adamw.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

// The order of operations of adamw.cpp, so that both give the same bits for the same m and v. T is the type of parameter. If
// T is the accumulator type, parameter and master are the same array.
template <class T, class A = Accumulator<T>>
void step(const FrozenAdamWStep& options, A* master, const A* m_array, const A* v_array, T* parameter, std::int64_t count) {
  const AccumulatorTag<T> d;
  const auto constant = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const auto decay = constant(options.lr * options.weight_decay);
  const auto rate = constant(options.lr * options.factor / options.correction1);
  const auto correction2 = constant(1 / options.correction2);
  const auto epsilon = constant(options.epsilon);
  const auto limit = constant(options.limit > 0 ? options.limit * options.correction1 : std::numeric_limits<A>::infinity());
  const auto zero = hn::Zero(d);
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    auto p = load(d, master + i, lanes);
    p = hn::NegMulAdd(decay, p, p);
    const auto v = load(d, v_array + i, lanes);
    const auto deviation = hn::Add(hn::Sqrt(hn::Mul(v, correction2)), epsilon);
    auto ratio = hn::Div(load(d, m_array + i, lanes), deviation);
    ratio = hn::Min(hn::Max(ratio, hn::Neg(limit)), limit);
    p = hn::NegMulAdd(rate, hn::IfThenElse(hn::Eq(v, zero), zero, ratio), p);
    store(d, p, master + i, lanes);
    if constexpr (!std::is_same_v<T, A>) store(d, p, parameter + i, lanes);
  });
}

}  // namespace

void frozen_adamw_simd(const FrozenAdamWStep& options, const Tensor& master, const Tensor& m, const Tensor& v,
                       const Tensor& parameter) {
  with_compute_type(parameter.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    step(options, master.data<A>(), m.data<A>(), v.data<A>(), parameter.data<T>(), parameter.size());
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(frozen_adamw_simd);

void frozen_adamw(const FrozenAdamWStep& options, const Tensor& master, const Tensor& m, const Tensor& v,
                  const Tensor& parameter) {
  STRETTO_DISPATCH(frozen_adamw_simd)(options, master, m, v, parameter);
}

}  // namespace stretto::kernels::cpu
#endif
