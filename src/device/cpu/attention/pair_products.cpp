#include "device/cpu/attention/pair_products.hpp"

#include "core/fail.hpp"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace stretto::kernels::attention {
#ifdef __x86_64__
namespace {

#define WITH_BF16 __attribute__((target("avx512f,avx512bf16")))
constexpr Index lanes = 16;

template <int rows, int vectors>
WITH_BF16 void products_in_registers(Index pairs, const std::int32_t* left, Index left_row, const std::int32_t* right,
                                     float* sums, float factor) {
  __m512 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) sum[r][n] = _mm512_setzero_ps();
  }
  for (Index i = 0; i < pairs; ++i) {
    __m512bh of_right[vectors];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) of_right[n] = (__m512bh)_mm512_loadu_si512(right + i * tile + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const auto of_left = (__m512bh)_mm512_set1_epi32(left[r * left_row + i]);
#pragma GCC unroll 8
      for (int n = 0; n < vectors; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], of_left, of_right[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n)
      _mm512_storeu_ps(sums + r * tile + n * lanes, _mm512_mul_ps(sum[r][n], _mm512_set1_ps(factor)));
  }
}

}  // namespace

void pair_products(Index columns, Index pairs, const std::int32_t* left, Index left_row, const std::int32_t* right,
                   float* sums, float factor) {
  constexpr int tall = row_group / 2;
  Index column = 0;
  for (; column + 4 * lanes <= columns; column += 4 * lanes) {
    for (Index r = 0; r < row_group; r += tall) {
      products_in_registers<tall, 4>(pairs, left + r * left_row, left_row, right + column, sums + r * tile + column, factor);
    }
  }
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    products_in_registers<row_group, 2>(pairs, left, left_row, right + column, sums + column, factor);
  }
  for (; column < columns; column += lanes) {
    products_in_registers<row_group, 1>(pairs, left, left_row, right + column, sums + column, factor);
  }
}
#else
void pair_products(Index /*columns*/, Index /*pairs*/, const std::int32_t* /*left*/, Index /*left_row*/,
                   const std::int32_t* /*right*/, float* /*sums*/, float /*factor*/) {
  fail(ErrorCode::internal, "This processor does not multiply bf16.");
}
#endif

}  // namespace stretto::kernels::attention
