// The softmax of attention and its derivative for one instruction set; attention.cpp includes this file once for each.
// Scores are kept transposed, with a row for each key and a column for each query: the softmax of a query then runs down a
// column, one vector of queries at a time, and never sums over the lanes of a vector.
#if defined(STRETTO_ATTENTION_SOFTMAX_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_SOFTMAX_INL_HPP
#undef STRETTO_ATTENTION_SOFTMAX_INL_HPP
#else
#define STRETTO_ATTENTION_SOFTMAX_INL_HPP
#endif

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <limits>

#include "device/cpu/attention/attention_tiles-inl.hpp"
#include "device/cpu/exp-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

using kernels::HWY_NAMESPACE::exp;

// A query sees the keys up to its own position. This is the mask of the queries in one vector, beginning with `query`, that
// see the key.
template <class T>
HWY_INLINE hn::Mask<Vectors<T>> sees(Index query, Index key) {
  const Vectors<T> d;
  return hn::Not(hn::FirstN(d, static_cast<std::size_t>(std::max<Index>(0, key - query))));
}

// The keys of a block, by how many queries of one vector see them.
struct KeyRange {
  Index seen_by_all;   // [0, seen_by_all)
  Index seen_by_some;  // [seen_by_all, seen_by_some): masked
  Index cleared;       // [seen_by_some, cleared): seen by none, set to zero because products of whole row groups read them
};
template <class T>
KeyRange keys_of(Index query, Index keys) {
  const Index group_end = (query / row_group + 1) * row_group;
  return {std::min(keys, query + 1), std::min(keys, query + lanes<T>()), std::min(keys, group_end)};
}

// Running softmax of a tile's queries: the largest score, the sum of exponentials, and the factor by which the last block
// scaled the earlier sums.
template <class T>
struct Running {
  alignas(64) T top[tile], sum[tile], correction[tile];
};

// scores become exp(score - top).
template <class T>
void softmax_block(T* scores, Index first_query, Index keys, Index width, bool first_block, Running<T>& running) {
  const Vectors<T> d;
  const auto lowest = hn::Set(d, std::numeric_limits<T>::lowest());
  for (Index column = 0; column < width; column += lanes<T>()) {
    const Index query = first_query + column;
    const KeyRange range = keys_of<T>(query, keys);
    T* const at = scores + column;
    const auto before = first_block ? lowest : hn::Load(d, running.top + column);
    auto top = before;
    Index key = 0;
    for (; key < range.seen_by_all; ++key) top = hn::Max(top, hn::Load(d, at + key * tile));
    for (; key < range.seen_by_some; ++key) {
      top = hn::Max(top, hn::IfThenElse(sees<T>(query, key), hn::Load(d, at + key * tile), lowest));
    }
    const auto correction = exp(d, hn::Sub(before, top));
    auto sum = first_block ? hn::Zero(d) : hn::Mul(correction, hn::Load(d, running.sum + column));
    for (key = 0; key < range.seen_by_all; ++key) {
      const auto e = exp(d, hn::Sub(hn::Load(d, at + key * tile), top));
      sum = hn::Add(sum, e);
      hn::Store(e, d, at + key * tile);
    }
    for (; key < range.seen_by_some; ++key) {
      const auto e = exp(d, hn::Sub(hn::Load(d, at + key * tile), top));
      const auto seen = hn::IfThenElseZero(sees<T>(query, key), e);
      sum = hn::Add(sum, seen);
      hn::Store(seen, d, at + key * tile);
    }
    for (; key < range.cleared; ++key) hn::Store(hn::Zero(d), d, at + key * tile);
    hn::Store(top, d, running.top + column);
    hn::Store(sum, d, running.sum + column);
    hn::Store(correction, d, running.correction + column);
  }
}

// top becomes the log-sum-exp, sum its inverse.
template <class T>
void finish(Index width, Running<T>& running) {
  const Vectors<T> d;
  for (Index column = 0; column < width; column += lanes<T>()) {
    const auto sum = hn::Load(d, running.sum + column);
    hn::Store(hn::Add(hn::Load(d, running.top + column), hn::Log(d, sum)), d, running.top + column);
    hn::Store(hn::Div(hn::Set(d, T(1)), sum), d, running.sum + column);
  }
}

// Products of scores and of their gradients become probabilities and gradients of scaled scores:
// p = exp(score - log_sum_exp), ds = p (dp - delta).
template <class T>
void softmax_backward_block(T* p, T* ds, Index first_query, Index keys, Index width, const T* log_sum_exp, const T* delta) {
  const Vectors<T> d;
  for (Index column = 0; column < width; column += lanes<T>()) {
    const Index query = first_query + column;
    const KeyRange range = keys_of<T>(query, keys);
    const auto shift = hn::Load(d, log_sum_exp + column);
    const auto mean = hn::Load(d, delta + column);
    Index at = column;
    Index key = 0;
    for (; key < range.seen_by_all; ++key, at += tile) {
      const auto e = exp(d, hn::Sub(hn::Load(d, p + at), shift));
      hn::Store(e, d, p + at);
      hn::Store(hn::Mul(e, hn::Sub(hn::Load(d, ds + at), mean)), d, ds + at);
    }
    for (; key < range.seen_by_some; ++key, at += tile) {
      const auto mask = sees<T>(query, key);
      const auto e = exp(d, hn::Sub(hn::Load(d, p + at), shift));
      hn::Store(hn::IfThenElseZero(mask, e), d, p + at);
      hn::Store(hn::IfThenElseZero(mask, hn::Mul(e, hn::Sub(hn::Load(d, ds + at), mean))), d, ds + at);
    }
    for (; key < range.cleared; ++key, at += tile) {
      hn::Store(hn::Zero(d), d, p + at);
      hn::Store(hn::Zero(d), d, ds + at);
    }
  }
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
