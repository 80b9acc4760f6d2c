#pragma once
#ifdef __x86_64__
// GCC 12 takes what its own intrinsics leave undefined for a mistake (GCC's bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// Sixteen vectors of sixteen 32-bit elements. Include it only in files of functions that are compiled for AVX-512
// themselves.
namespace stretto::kernels::cpu {

struct Square16 {
  __m512i row[16];
};

__attribute__((target("avx512f"))) inline void transpose(Square16& x) {
  __m512i t[16], u[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x.row[i], x.row[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x.row[i], x.row[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // u[4 i + j] has columns j, 4 + j, 8 + j and 12 + j of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xdd);
    x.row[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    x.row[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x.row[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    x.row[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

}  // namespace stretto::kernels::cpu
#endif
