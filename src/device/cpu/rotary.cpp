#include "core/fail.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/rotary.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/head_places.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

// The halves of a head are the coordinates of its points. Both are loaded before one is stored, since out may be x.
template <bool inverse, class T, class A = Accumulator<T>>
HWY_INLINE void turn(const T* x, const A* cosines, std::int64_t half, T* out) {
  const AccumulatorTag<T> d;
  const A* const sines = cosines + half;
  for_each_vector(d, half, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const auto a = load(d, x + i, lanes);
    const auto b = load(d, x + half + i, lanes);
    const auto cosine = load(d, cosines + i, lanes);
    const auto sine = load(d, sines + i, lanes);
    if constexpr (inverse) {
      store_result(d, hn::MulAdd(a, cosine, hn::Mul(b, sine)), out + i, lanes);
      store_result(d, hn::NegMulAdd(a, sine, hn::Mul(b, cosine)), out + half + i, lanes);
    } else {
      store_result(d, hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), out + i, lanes);
      store_result(d, hn::MulAdd(a, sine, hn::Mul(b, cosine)), out + half + i, lanes);
    }
  });
}

template <bool inverse, class T>
void turn_all(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table, const TokenHeads& out) {
  using A = Accumulator<T>;
  const std::int64_t half = table.columns();
  const cpu::HeadPlaces<T> from(x, heads, 2 * half);
  const cpu::HeadPlaces<T> to(out, heads, 2 * half);
  const std::int32_t* const position = positions.data<std::int32_t>();
  const std::int64_t tokens = positions.size();
  for (std::int64_t token = 0; token < tokens; ++token) {
    const A* const cosines = table.data<A>() + position[token] * 2 * half;
    for (std::int64_t head = 0; head < heads; ++head) {
      turn<inverse>(from.at({token, head}), cosines, half, to.at({token, head}));
    }
  }
}

}  // namespace

void rotary_simd(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                 const TokenHeads& out, bool inverse) {
  with_compute_type(x.tensor.dtype(), [&]<class T>(T) {
    if (inverse) return turn_all<true, T>(x, heads, positions, table, out);
    turn_all<false, T>(x, heads, positions, table, out);
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(rotary_simd);

void rotary(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table, const TokenHeads& out,
            bool inverse) {
  const std::int64_t rows = table.shape().front();
  for (std::int64_t token = 0; token < positions.size(); ++token) {
    const std::int32_t position = positions.data<std::int32_t>()[token];
    require(position >= 0 && position < rows, "rotary was given position {}, of which its table of {} positions has no row.",
            position, rows);
  }
  STRETTO_DISPATCH(rotary_simd)(x, heads, positions, table, out, inverse);
}

}  // namespace stretto::kernels::cpu
#endif
