// The inner loops of attention for one instruction set; attention.cpp includes this file once for each (Highway).
// A tile is a small row-major matrix in scratch memory. Rows of tiles are padded with zeros to whole vectors and their
// number to a multiple of row_group, so that no loop has a remainder.
#if defined(STRETTO_ATTENTION_TILES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_TILES_INL_HPP
#undef STRETTO_ATTENTION_TILES_INL_HPP
#else
#define STRETTO_ATTENTION_TILES_INL_HPP
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "device/cpu/attention/tile_mask.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using kernels::HWY_NAMESPACE::for_each_vector;
using kernels::HWY_NAMESPACE::load;
using kernels::HWY_NAMESPACE::product_vectors;
using kernels::HWY_NAMESPACE::store;
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

inline Index whole_groups(Index rows) { return (rows + row_group - 1) / row_group * row_group; }

// Parts of one allocation, each beginning at a cache line.
template <class T>
class Scratch {
 public:
  explicit Scratch(Index elements) : memory_({elements}, dtype_of<T>, Device::cpu), next_(memory_.data<T>()) {}
  T* take(Index elements) { return std::exchange(next_, next_ + padded<T>(elements)); }

 private:
  MemoryScope scope_{MemoryKind::other};
  Tensor memory_;
  T* next_;
};

// Stores the softmax of a tile as T, with a row for each key and a column for each query. put() stores two keys.
template <class T>
struct PlainTile {
  T* rows;

  HWY_INLINE void put(Index key, Index column, hn::Vec<Vectors<T>> first, hn::Vec<Vectors<T>> second) const {
    hn::Store(first, Vectors<T>(), rows + key * tile + column);
    hn::Store(second, Vectors<T>(), rows + (key + 1) * tile + column);
  }
};

// A matrix; with row_step and column_step exchanged, its transpose.
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

// Like product_in_registers, for row_group rows and any number of whole vectors of columns.
template <class T>
void product(Index columns, Index depth, Operand<T> a, const T* HWY_RESTRICT b, Index b_row, T* HWY_RESTRICT c, Index c_row,
             bool accumulate) {
  constexpr int wide = product_vectors;
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

// One operand's rows of one head of one sequence.
struct Rows {
  std::byte* first;
  DType dtype;
  Index pitch;  // elements from one row to the next

  Rows at(Index element) const { return {first + element * static_cast<Index>(size_of(dtype)), dtype, pitch}; }
  Rows from(Index row) const { return at(row * pitch); }
};

// Calls run with a pointer to elements of the type that they have, which is T or one that computes in T.
template <class T, class Run>
HWY_INLINE void with_elements(const Rows& rows, Run run) {
  if constexpr (std::is_same_v<T, double>) {
    run(reinterpret_cast<double*>(rows.first));
  } else {
    if (rows.dtype == DType::f32) return run(reinterpret_cast<float*>(rows.first));
    if (rows.dtype == DType::bf16) return run(reinterpret_cast<bf16*>(rows.first));
    run(reinterpret_cast<f16*>(rows.first));
  }
}

// to[row][column] = from[row][column] * factor for count rows of d columns; zeros up to all_rows and the padded columns.
template <class T>
void load_rows(const Rows& rows, Index count, Index d, T factor, T* HWY_RESTRICT to, Index all_rows) {
  const Vectors<T> v;
  const Index columns = padded<T>(d);
  with_elements<T>(rows, [&]<class F>(const F* HWY_RESTRICT from) HWY_ATTR {
    for (Index row = 0; row < count; ++row) {
      const F* const in = from + row * rows.pitch;
      T* const out = to + row * columns;
      // Rows are pages apart, so the processor does not prefetch the next ones by itself.
      for (Index column = 0; column < d; column += 64 / sizeof(F)) __builtin_prefetch(in + 8 * rows.pitch + column);
      for_each_vector(v, d, [&](std::int64_t column, auto which) HWY_ATTR {
        store(v, hn::Mul(load(v, in + column, which), hn::Set(v, factor)), out + column, which);
      });
      std::fill(out + d, out + columns, T(0));
    }
  });
  for (Index i = count * columns; i < all_rows * columns; ++i) to[i] = 0;
}

// rows = or += from * factor(row).
template <class T, class Factor>
void store_rows(const T* HWY_RESTRICT from, Index count, Index d, Factor factor, const Rows& rows, bool add) {
  const Vectors<T> v;
  const Index columns = padded<T>(d);
  with_elements<T>(rows, [&]<class F>(F* HWY_RESTRICT to) HWY_ATTR {
    for (Index row = 0; row < count; ++row) {
      const T* const in = from + row * columns;
      F* const out = to + row * rows.pitch;
      const auto by = hn::Set(v, factor(row));
      for (Index column = 0; column < d; column += 64 / sizeof(F)) __builtin_prefetch(out + 8 * rows.pitch + column, 1);
      for_each_vector(v, d, [&](std::int64_t column, auto which) HWY_ATTR {
        const auto here = hn::Mul(hn::Load(v, in + column), by);
        store(v, add ? hn::Add(load(v, out + column, which), here) : here, out + column, which);
      });
    }
  });
}

// to[column][row] = from[row][column], in blocks of 128-bit vectors: what pads rows and columns to whole blocks is
// transposed, too.
template <class T>
void transpose(const T* HWY_RESTRICT from, Index from_row, Index rows, Index columns, T* HWY_RESTRICT to, Index to_row) {
#if HWY_TARGET == HWY_SCALAR
  for (Index row = 0; row < rows; ++row) {
    for (Index column = 0; column < columns; ++column) to[column * to_row + row] = from[row * from_row + column];
  }
#else
  constexpr Index unit = 16 / sizeof(T);
  const hn::FixedTag<T, unit> v;
  for (Index row = 0; row < rows; row += unit) {
    for (Index column = 0; column < columns; column += unit) {
      const T* const in = from + row * from_row + column;
      T* const out = to + column * to_row + row;
      const auto a = hn::Load(v, in);
      const auto b = hn::Load(v, in + from_row);
      const auto ab_low = hn::InterleaveLower(v, a, b);
      const auto ab_high = hn::InterleaveUpper(v, a, b);
      if constexpr (unit == 2) {
        hn::Store(ab_low, v, out);
        hn::Store(ab_high, v, out + to_row);
      } else {
        const auto c = hn::Load(v, in + 2 * from_row);
        const auto e = hn::Load(v, in + 3 * from_row);
        const auto ce_low = hn::InterleaveLower(v, c, e);
        const auto ce_high = hn::InterleaveUpper(v, c, e);
        hn::Store(hn::ConcatLowerLower(v, ce_low, ab_low), v, out);
        hn::Store(hn::ConcatUpperUpper(v, ce_low, ab_low), v, out + to_row);
        hn::Store(hn::ConcatLowerLower(v, ce_high, ab_high), v, out + 2 * to_row);
        hn::Store(hn::ConcatUpperUpper(v, ce_high, ab_high), v, out + 3 * to_row);
      }
    }
  }
#endif
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

// Multiplies each column of a tile's transpose by its factor.
template <class T>
void scale_columns(T* columns_of_rows, Index rows, Index width, const T* factors) {
  const Vectors<T> d;
  for (Index column = 0; column < width; column += lanes<T>()) {
    const auto factor = hn::Load(d, factors + column);
    if (hn::AllTrue(d, hn::Eq(factor, hn::Set(d, T(1))))) continue;
    for (Index row = 0; row < rows; ++row) {
      T* const at = columns_of_rows + row * tile + column;
      hn::Store(hn::Mul(hn::Load(d, at), factor), d, at);
    }
  }
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
