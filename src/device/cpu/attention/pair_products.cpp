#include "device/cpu/attention/pair_products.hpp"

#include "core/fail.hpp"
#include "device/cpu/products/tile_product.hpp"
#include "device/cpu/products/tile_registers.hpp"

namespace stretto::kernels::attention {
#ifdef __x86_64__
namespace {

#define WITH_BF16 __attribute__((target("avx512f,avx512bf16")))
constexpr Index lanes = 16;

template <int rows, int vectors>
WITH_BF16 void products_in_registers(Index pairs, PairRows left, const std::int32_t* right, Index right_row, float* sums,
                                     Index sums_row, bool accumulate) {
  __m512 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) sum[r][n] = _mm512_setzero_ps();
  }
  for (Index i = 0; i < pairs; ++i) {
    __m512bh of_right[vectors];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) of_right[n] = (__m512bh)_mm512_loadu_si512(right + i * right_row + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const auto of_left = (__m512bh)_mm512_set1_epi32(left.data[r * left.row_step + i]);
#pragma GCC unroll 8
      for (int n = 0; n < vectors; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], of_left, of_right[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) {
      float* const to = sums + r * sums_row + n * lanes;
      _mm512_storeu_ps(to, accumulate ? _mm512_add_ps(sum[r][n], _mm512_loadu_ps(to)) : sum[r][n]);
    }
  }
}

void row_group_products(Index columns, Index pairs, PairRows left, const std::int32_t* right, Index right_row, float* sums,
                        Index sums_row, bool accumulate) {
  constexpr int tall = row_group / 2;
  Index column = 0;
  for (; column + 4 * lanes <= columns; column += 4 * lanes) {
    for (Index r = 0; r < row_group; r += tall) {
      products_in_registers<tall, 4>(pairs, {left.data + r * left.row_step, left.row_step}, right + column, right_row,
                                     sums + r * sums_row + column, sums_row, accumulate);
    }
  }
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    products_in_registers<row_group, 2>(pairs, left, right + column, right_row, sums + column, sums_row, accumulate);
  }
  for (; column < columns; column += lanes) {
    products_in_registers<row_group, 1>(pairs, left, right + column, right_row, sums + column, sums_row, accumulate);
  }
}

void vector_products(Index rows, Index columns, Index pairs, PairRows left, const std::int32_t* right, Index right_row,
                     float* sums, Index sums_row, bool accumulate) {
  for (Index row = 0; row < rows; row += row_group) {
    row_group_products(columns, pairs, {left.data + row * left.row_step, left.row_step}, right, right_row,
                       sums + row * sums_row, sums_row, accumulate);
  }
}

constexpr Index unit = cpu::tile_rows;  // of rows, columns and pairs

// Tall and wide: one or two units of rows and of columns. Registers 0 to 3 hold the sums: [0, 1; 2, 3].
template <int tall, int wide>
STRETTO_WITH_TILES void tile_products(Index pairs, PairRows left, const std::int32_t* right, Index right_row, float* sums,
                                      Index sums_row, bool accumulate) {
  const Index of_left = left.row_step * 4;
  const Index of_right = right_row * 4;
  const Index of_sums = sums_row * 4;
  float* const lower = sums + unit * sums_row;
  if (accumulate) {
    _tile_loadd(0, sums, of_sums);
    if constexpr (wide == 2) _tile_loadd(1, sums + unit, of_sums);
    if constexpr (tall == 2) _tile_loadd(2, lower, of_sums);
    if constexpr (tall == 2 && wide == 2) _tile_loadd(3, lower + unit, of_sums);
  } else {
    _tile_zero(0);
    if constexpr (wide == 2) _tile_zero(1);
    if constexpr (tall == 2) _tile_zero(2);
    if constexpr (tall == 2 && wide == 2) _tile_zero(3);
  }
  for (Index i = 0; i < pairs; i += unit) {
    _tile_loadd(6, right + i * right_row, of_right);
    _tile_loadd(4, left.data + i, of_left);
    if constexpr (wide == 2) _tile_loadd(7, right + i * right_row + unit, of_right);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (tall == 2) _tile_loadd(5, left.data + i + unit * left.row_step, of_left);
    if constexpr (wide == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (tall == 2 && wide == 2) _tile_dpbf16ps(3, 5, 7);
    if constexpr (tall == 2) _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, sums, of_sums);
  if constexpr (wide == 2) _tile_stored(1, sums + unit, of_sums);
  if constexpr (tall == 2) _tile_stored(2, lower, of_sums);
  if constexpr (tall == 2 && wide == 2) _tile_stored(3, lower + unit, of_sums);
}

// Whole units of rows, columns and pairs.
void products_of_units(Index rows, Index columns, Index pairs, PairRows left, const std::int32_t* right, Index right_row,
                       float* sums, Index sums_row, bool accumulate) {
  cpu::tiles_meet_memory();
  for (Index row = 0; row < rows; row += 2 * unit) {
    const PairRows from{left.data + row * left.row_step, left.row_step};
    const bool tall = row + unit < rows;
    for (Index column = 0; column < columns; column += 2 * unit) {
      const bool wide = column + unit < columns;
      const auto with = [&](auto run) {
        run(pairs, from, right + column, right_row, sums + row * sums_row + column, sums_row, accumulate);
      };
      if (tall && wide) {
        with(tile_products<2, 2>);
      } else if (tall) {
        with(tile_products<2, 1>);
      } else if (wide) {
        with(tile_products<1, 2>);
      } else {
        with(tile_products<1, 1>);
      }
    }
  }
  cpu::tiles_meet_memory();
}

}  // namespace

PairProducts::PairProducts(bool used) : tiles_(used && cpu::processor_has_tiles()) {
  if (tiles_) cpu::begin_tiles();
}

PairProducts::~PairProducts() {
  if (tiles_) cpu::end_tiles();
}

void pair_products(Index rows, Index columns, Index pairs, PairRows left, const std::int32_t* right, Index right_row,
                   float* sums, Index sums_row, bool accumulate) {
  const Index deep = pairs / unit * unit;
  const Index tall = deep == 0 || !cpu::processor_has_tiles() ? 0 : rows / unit * unit;
  if (tall > 0) {
    products_of_units(tall, columns, deep, left, right, right_row, sums, sums_row, accumulate);
    if (deep < pairs) {
      vector_products(tall, columns, pairs - deep, {left.data + deep, left.row_step}, right + deep * right_row, right_row,
                      sums, sums_row, true);
    }
  }
  vector_products(rows - tall, columns, pairs, {left.data + tall * left.row_step, left.row_step}, right, right_row,
                  sums + tall * sums_row, sums_row, accumulate);
}
#else
PairProducts::PairProducts(bool used) : tiles_(used) {}
PairProducts::~PairProducts() = default;

void pair_products(Index /*rows*/, Index /*columns*/, Index /*pairs*/, PairRows /*left*/, const std::int32_t* /*right*/,
                   Index /*right_row*/, float* /*sums*/, Index /*sums_row*/, bool /*accumulate*/) {
  fail(ErrorCode::internal, "This processor does not multiply bf16.");
}
#endif

}  // namespace stretto::kernels::attention
