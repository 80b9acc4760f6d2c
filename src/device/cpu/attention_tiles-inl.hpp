// The inner loops of attention for one instruction set; attention.cpp includes this file once for each (Highway).
// A tile is a small row-major matrix in scratch memory. Rows of tiles are padded with zeros to whole vectors and their
// number to a multiple of row_group, so that no loop has a remainder.
#if defined(STRETTO_ATTENTION_TILES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_TILES_INL_HPP
#undef STRETTO_ATTENTION_TILES_INL_HPP
#else
#define STRETTO_ATTENTION_TILES_INL_HPP
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "stretto/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Index = std::int64_t;

constexpr Index tile = 64;      // rows or columns
constexpr Index row_group = 8;  // rows that are computed together

// At most 64 bytes a vector, so that a multiple of 64 bytes is a multiple of the vector.
template <class T>
using Vectors = hn::CappedTag<T, 64 / sizeof(T)>;

template <class T>
Index padded(Index columns) {
  constexpr Index unit = 64 / sizeof(T);
  return (columns + unit - 1) / unit * unit;
}

template <class T>
HWY_INLINE Index lanes() {
  return static_cast<Index>(hn::Lanes(Vectors<T>()));
}

// A matrix, or, with the steps exchanged, its transpose.
template <class T>
struct Operand {
  const T* data;
  Index row_step, column_step;
};

// c[R rows][N vectors] = or += a[R][depth] b[depth][N vectors]: the sums stay in registers.
template <int R, int N, class T>
HWY_INLINE void product_in_registers(Index depth, Operand<T> a, const T* HWY_RESTRICT b, Index b_row, T* HWY_RESTRICT c,
                                     Index c_row, bool accumulate) {
  const Vectors<T> d;
  const Index step = lanes<T>();
  hn::Vec<Vectors<T>> sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[r][n] = accumulate ? hn::Load(d, c + r * c_row + n * step) : hn::Zero(d);
  }
  for (Index k = 0; k < depth; ++k) {
    hn::Vec<Vectors<T>> row_of_b[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) row_of_b[n] = hn::Load(d, b + k * b_row + n * step);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto factor = hn::Set(d, a.data[r * a.row_step + k * a.column_step]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[r][n] = hn::MulAdd(factor, row_of_b[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) hn::Store(sum[r][n], d, c + r * c_row + n * step);
  }
}

// The same for row_group rows and any number of whole vectors of columns.
template <class T>
void product(Index columns, Index depth, Operand<T> a, const T* HWY_RESTRICT b, Index b_row, T* HWY_RESTRICT c, Index c_row,
             bool accumulate) {
  constexpr int wide = HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86 ? 4 : 2;  // by the number of registers
  constexpr int tall = 4;
  const Index step = lanes<T>();
  Index column = 0;
  for (; column + wide * step <= columns; column += wide * step) {
    for (Index r = 0; r < row_group; r += tall) {
      product_in_registers<tall, wide>(depth, Operand<T>{a.data + r * a.row_step, a.row_step, a.column_step}, b + column,
                                       b_row, c + r * c_row + column, c_row, accumulate);
    }
  }
  if constexpr (wide == 4) {
    for (; column + 2 * step <= columns; column += 2 * step) {
      product_in_registers<row_group, 2>(depth, a, b + column, b_row, c + column, c_row, accumulate);
    }
  }
  for (; column < columns; column += step) {
    product_in_registers<row_group, 1>(depth, a, b + column, b_row, c + column, c_row, accumulate);
  }
}

// The type in which attention of f computes.
template <class F>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <class F>
using Compute = typename ComputeType<F>::type;

// to[row][column] = from[row][column] * factor for count rows of d columns; zeros up to all_rows and the padded columns.
template <class F, class T>
void load_rows(const F* HWY_RESTRICT from, Index from_row, Index count, Index d, T factor, T* HWY_RESTRICT to,
               Index all_rows) {
  const Index columns = padded<T>(d);
  for (Index row = 0; row < count; ++row) {
    for (Index column = 0; column < d; ++column) {
      to[row * columns + column] = static_cast<T>(from[row * from_row + column]) * factor;
    }
    for (Index column = d; column < columns; ++column) to[row * columns + column] = 0;
  }
  for (Index i = count * columns; i < all_rows * columns; ++i) to[i] = 0;
}

template <class T, class F>
void store_rows(const T* HWY_RESTRICT from, Index count, Index d, T factor, F* HWY_RESTRICT to, Index to_row) {
  const Index columns = padded<T>(d);
  for (Index row = 0; row < count; ++row) {
    for (Index column = 0; column < d; ++column) {
      to[row * to_row + column] = static_cast<F>(from[row * columns + column] * factor);
    }
  }
}

// to[column][row] of tile columns = from[row][column], of which all tile rows are there.
template <class T>
void transpose(const T* HWY_RESTRICT from, Index d, T* HWY_RESTRICT to) {
  const Index columns = padded<T>(d);
  constexpr Index unit = 64 / sizeof(T);
  for (Index row = 0; row < tile; row += unit) {
    for (Index column = 0; column < d; ++column) {
      for (Index r = row; r < row + unit; ++r) to[column * tile + r] = from[r * columns + column];
    }
  }
}

template <class T>
T dot(const T* a, const T* b, Index columns) {
  const Vectors<T> d;
  auto sum = hn::Zero(d);
  for (Index column = 0; column < columns; column += lanes<T>()) {
    sum = hn::MulAdd(hn::Load(d, a + column), hn::Load(d, b + column), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Multiplies each of row_group rows by its factor.
template <class T>
void scale_rows(T* rows, Index columns, const T* factors) {
  const Vectors<T> d;
  for (Index row = 0; row < row_group; ++row) {
    if (factors[row] == 1) continue;
    const auto factor = hn::Set(d, factors[row]);
    T* const at = rows + row * columns;
    for (Index column = 0; column < columns; column += lanes<T>()) {
      hn::Store(hn::Mul(hn::Load(d, at + column), factor), d, at + column);
    }
  }
}

// A query sees the keys up to its own place. Which of the queries of one vector, the first of which is given, see the key?
template <class T>
HWY_INLINE hn::Mask<Vectors<T>> sees(Index query, Index key) {
  const Vectors<T> d;
  return hn::Not(hn::FirstN(d, static_cast<std::size_t>(std::max<Index>(0, key - query))));
}

// The keys of a block as the queries of one vector meet them.
struct KeyRange {
  Index seen_by_all;   // [0, seen_by_all)
  Index seen_by_some;  // [seen_by_all, seen_by_some): masked
  Index cleared;       // [seen_by_some, cleared): seen by none, but products of whole row groups read them as zeros
};
template <class T>
KeyRange keys_of(Index query, Index keys) {
  const Index group_end = (query / row_group + 1) * row_group;
  return {std::min(keys, query + 1), std::min(keys, query + lanes<T>()), std::min(keys, group_end)};
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
