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

// The halves of a head are the coordinates of its points. Cosines and sines are loaded once for all heads of a token; both
// halves of a head are loaded before one is stored, since out may be x.
template <bool inverse, class T, class A = Accumulator<T>>
HWY_INLINE void turn(const cpu::HeadPlaces<T>& x, std::int64_t token, std::int64_t heads, const A* cosines,
                     std::int64_t half, const cpu::HeadPlaces<T>& out) {
  const AccumulatorTag<T> d;
  const auto sum = [](auto v, auto w, auto cosine, auto sine) HWY_ATTR { return hn::MulAdd(w, sine, hn::Mul(v, cosine)); };
  const auto rest = [](auto v, auto w, auto cosine, auto sine)
                        HWY_ATTR { return hn::NegMulAdd(w, sine, hn::Mul(v, cosine)); };
  for_each_of<TwoVectors>(d, half, [&](std::int64_t i, auto which) HWY_ATTR {
    const auto cosine = load_beside<T>(d, cosines + i, which);
    const auto sine = load_beside<T>(d, cosines + half + i, which);
    for (std::int64_t head = 0; head < heads; ++head) {
      const T* const from = x.at({token, head}) + i;
      T* const to = out.at({token, head}) + i;
      const auto a = load(d, from, which);
      const auto b = load(d, from + half, which);
      if constexpr (inverse) {
        store_result(d, each(sum, a, b, cosine, sine), to, which);
        store_result(d, each(rest, b, a, cosine, sine), to + half, which);
      } else {
        store_result(d, each(rest, a, b, cosine, sine), to, which);
        store_result(d, each(sum, b, a, cosine, sine), to + half, which);
      }
    }
  });
}

// The processor fetches ahead what lies in a row; heads are too short for it to keep up.
constexpr std::int64_t tokens_ahead = 3;

template <bool inverse, class T>
void turn_all(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table, const TokenHeads& out) {
  const std::int64_t half = table.columns();
  const cpu::HeadPlaces<T> from(x, heads, 2 * half);
  const cpu::HeadPlaces<T> to(out, heads, 2 * half);
  const std::int32_t* const position = positions.data<std::int32_t>();
  const std::int64_t tokens = positions.size();
  const std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t head = 0; head < heads && token + tokens_ahead < tokens; ++head) {
      const T* const ahead = from.at({token + tokens_ahead, head});
      for (std::int64_t i = 0; i < 2 * half; i += line) __builtin_prefetch(ahead + i);
    }
    turn<inverse>(from, token, heads, table.data<Accumulator<T>>() + position[token] * 2 * half, half, to);
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
