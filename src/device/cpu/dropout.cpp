#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/dropout.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "core/draws.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

// The draws of the columns from `first` on, as lanes of 32 bits.
template <class D>
HWY_INLINE hn::Vec<D> draws_from(D d, const DrawKey& key, std::uint32_t first) {
  auto h = hn::Xor(hn::Iota(d, first), hn::Set(d, key.before));
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(d, draw_factors[0]));
  h = hn::Add(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(d, key.between));
  h = hn::Mul(h, hn::Set(d, draw_factors[1]));
  return hn::Xor(h, hn::ShiftRight<16>(h));
}

// 1 for each column that is kept, else 0.
template <class D>
HWY_INLINE hn::Vec<D> kept_from(D d, const DrawKey& key, std::uint32_t first, std::uint32_t below) {
  const hn::Rebind<std::uint32_t, D> bits;
  const hn::Rebind<float, D> floats;
  const auto drawn = draws_from(bits, key, first);
  const auto keeps = hn::Eq(hn::Max(drawn, hn::Set(bits, below)), drawn);
  const auto one = hn::BitCast(bits, hn::Set(floats, 1.0F));
  const auto kept = hn::BitCast(floats, hn::IfThenElseZero(keeps, one));
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return hn::PromoteTo(d, kept);
  } else {
    return kept;
  }
}

template <class T>
void drop(const Dropout& options, const T* x, const std::int64_t* draws, std::int64_t rows, std::int64_t columns, T* out) {
  const AccumulatorTag<T> d;
  const auto factor = hn::Set(d, static_cast<Accumulator<T>>(1 / (1 - options.probability)));
  const std::uint32_t below = dropped_below(options.probability);
  for (std::int64_t row = 0; row < rows; ++row) {
    const DrawKey key = dropout_key(draws[row], options.number);
    const std::int64_t at = row * columns;
    for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
      const auto kept = kept_from(d, key, static_cast<std::uint32_t>(options.first_column + c), below);
      store_result(d, hn::Mul(hn::Mul(load(d, x + at + c, lanes), factor), kept), out + at + c, lanes);
    });
  }
}

}  // namespace

void dropout_simd(const Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    drop(options, x.data<T>(), draws.data<std::int64_t>(), x.rows(), x.columns(), out.data<T>());
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(dropout_simd);

void dropout(const Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out) {
  STRETTO_DISPATCH(dropout_simd)(options, x, draws, out);
}

}  // namespace stretto::kernels::cpu
#endif
