#include "device/cpu/products/small_product.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/products/small_product.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

using cpu::ProductUse;
using cpu::SmallProduct;

// A block of c from element (i, j) on, in registers.
template <int rows, int vectors, class Which>
HWY_INLINE void block_product(const SmallProduct& p, ProductUse use, std::int64_t i, std::int64_t j, Which lanes) {
  const hn::ScalableTag<float> d;
  const auto width = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  for (std::int64_t l = 0; l < p.k; ++l, a += p.a_column, b += p.b_row) {
    hn::Vec<decltype(d)> of_b[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) of_b[v] = load(d, b + v * width, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const auto of_a = hn::Set(d, a[r * p.a_row]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(of_a, of_b[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      float* const to = p.c + (i + r) * p.c_row + j + v * width;
      auto result = sums[r][v];
      if (use == ProductUse::subtract) result = hn::Sub(load(d, to, lanes), result);
      if (use == ProductUse::sign) {
        const auto zero = hn::Zero(d), one = hn::Set(d, 1.0F);
        result = hn::Sub(hn::IfThenElse(hn::Gt(result, zero), one, zero), hn::IfThenElse(hn::Lt(result, zero), one, zero));
      }
      store(d, result, to, lanes);
    }
  }
}

template <int vectors, class Which>
HWY_INLINE void columns_product(const SmallProduct& p, ProductUse use, std::int64_t j, Which lanes) {
  std::int64_t i = 0;
  for (; i + 4 <= p.m; i += 4) block_product<4, vectors>(p, use, i, j, lanes);
  for (; i < p.m; ++i) block_product<1, vectors>(p, use, i, j, lanes);
}

}  // namespace

void small_product_simd(const SmallProduct& p, ProductUse use) {
  const hn::ScalableTag<float> d;
  const auto width = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int vectors = product_vectors;
  std::int64_t j = 0;
  for (; j + vectors * width <= p.n; j += vectors * width) columns_product<vectors>(p, use, j, AllLanes{});
  for_each_vector(d, p.n - j, [&](std::int64_t more, auto lanes) HWY_ATTR { columns_product<1>(p, use, j + more, lanes); });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(small_product_simd);

void small_product(const SmallProduct& p, ProductUse use) { STRETTO_DISPATCH(small_product_simd)(p, use); }

}  // namespace stretto::kernels::cpu
#endif
