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

// exp(x) for x of at most a few units above zero, such as differences to a maximum.
template <class T, class V = hn::Vec<Vectors<T>>>
HWY_INLINE V exp_below(V x) {
  using C = kernels::HWY_NAMESPACE::ExpConstants<T>;
  const Vectors<T> d;
  const auto result = kernels::HWY_NAMESPACE::exp2_of_product(d, x, hn::Set(d, C::log2e));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::lowest)), result);
}

// The queries of one vector that see a key, from the key's word.
template <class T>
HWY_INLINE hn::Mask<Vectors<T>> queries_that_see(const std::uint64_t* word, Index column) {
  const Vectors<T> d;
  if constexpr (hn::MaxLanes(d) >= 8) {
    return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(word) + column / 8);
  } else {
    const std::uint64_t bits = *word >> column;
    return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
  }
}

// The keys that some query of one vector sees.
template <class T>
HWY_INLINE Range keys_of_vector(const TileMask& mask, Index column) {
  Range result = mask.keys_of(column / row_group);
  for (Index next = column + row_group; next < column + lanes<T>(); next += row_group) {
    const Range more = mask.keys_of(next / row_group);
    if (more.first == more.last) continue;
    if (result.first == result.last) result = more;
    result = {std::min(result.first, more.first), std::max(result.last, more.last)};
  }
  return result;
}

// Zeros the keys that products of whole row groups read although no query of the vector sees them.
template <class T, class Tile>
HWY_INLINE void clear_unseen(const Range& seen, Index keys, const Tile& to, Index column) {
  const auto zero = hn::Zero(Vectors<T>());
  for (Index key = 0; key < seen.first; key += 2) to.put(key, column, zero, zero);
  for (Index key = seen.last; key < keys; key += 2) to.put(key, column, zero, zero);
}

// Running softmax of a tile's queries: the largest score, the sum of exponentials, and the factor by which the last tile
// scaled the earlier sums. `lowest` stands for the largest of no scores.
template <class T>
struct Running {
  static constexpr T lowest = std::numeric_limits<T>::lowest();
  alignas(64) T top[tile], sum[tile], correction[tile];

  void begin() {
    std::fill_n(top, tile, lowest);
    std::fill_n(sum, tile, T(0));
  }
  // Goes on from results: a row that has its log-sum-exp as the largest score has a sum of 1.
  void go_on_from(const T* log_sum_exp, Index queries) {
    for (Index i = 0; i < queries; ++i) {
      if (log_sum_exp[i] == -std::numeric_limits<T>::infinity()) continue;
      top[i] = log_sum_exp[i];
      sum[i] = 1;
    }
  }
};

// Stores exp(factor * score - top) into `to`, which may be the scores.
template <bool masked, class T, class Tile>
void softmax_tile(const T* scores, T factor, const Tile& to, const TileMask& mask, Index keys, Index width,
                  Running<T>& running) {
  const Vectors<T> d;
  const auto scale = hn::Set(d, factor);
  const auto lowest = hn::Set(d, Running<T>::lowest);
  for (Index column = 0; column < width; column += lanes<T>()) {
    const Range seen = masked ? keys_of_vector<T>(mask, column) : Range{0, keys};
    const T* const at = scores + column;
    const auto before = hn::Load(d, running.top + column);
    auto top = before;
    for (Index key = seen.first; key < seen.last; ++key) {
      auto score = hn::Mul(hn::Load(d, at + key * tile), scale);
      if constexpr (masked) score = hn::IfThenElse(queries_that_see<T>(mask.words() + key, column), score, lowest);
      top = hn::Max(top, score);
    }
    const auto correction = exp_below<T>(hn::Sub(before, top));
    auto sum = hn::Mul(correction, hn::Load(d, running.sum + column));
    const auto exponential = [&](Index key) HWY_ATTR {
      const auto e = exp_below<T>(hn::MulSub(hn::Load(d, at + key * tile), scale, top));
      if constexpr (masked) return hn::IfThenElseZero(queries_that_see<T>(mask.words() + key, column), e);
      return e;
    };
    for (Index key = seen.first; key < seen.last; key += 2) {
      const auto first = exponential(key);
      const auto second = exponential(key + 1);
      sum = hn::Add(hn::Add(sum, first), second);
      to.put(key, column, first, second);
    }
    if constexpr (masked) clear_unseen<T>(seen, keys, to, column);
    hn::Store(top, d, running.top + column);
    hn::Store(sum, d, running.sum + column);
    hn::Store(correction, d, running.correction + column);
  }
}

// top becomes the log-sum-exp and sum its inverse; -infinity and 0 for a query that has seen no key.
template <class T>
void finish(Index width, Running<T>& running) {
  const Vectors<T> d;
  const auto none = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (Index column = 0; column < width; column += lanes<T>()) {
    const auto sum = hn::Load(d, running.sum + column);
    const auto empty = hn::Eq(sum, hn::Zero(d));
    const auto log_sum = hn::Add(hn::Load(d, running.top + column), hn::Log(d, sum));
    hn::Store(hn::IfThenElse(empty, none, log_sum), d, running.top + column);
    hn::Store(hn::IfThenZeroElse(empty, hn::Div(hn::Set(d, T(1)), sum)), d, running.sum + column);
  }
}

// Stores probabilities p = exp(factor * score - log_sum_exp), and gradients of scaled scores ds = p (dp - delta), where dp
// are the gradients of probabilities. p and ds may be stored in place of scores and dp.
template <bool masked, class T, class Tile>
void softmax_backward_tile(const T* scores, T factor, const T* dp, const Tile& p, const Tile& ds, const TileMask& mask,
                           Index keys, Index width, const T* log_sum_exp, const T* delta) {
  const Vectors<T> d;
  const auto scale = hn::Set(d, factor);
  for (Index column = 0; column < width; column += lanes<T>()) {
    const Range seen = masked ? keys_of_vector<T>(mask, column) : Range{0, keys};
    const auto shift = hn::Load(d, log_sum_exp + column);
    const auto mean = hn::Load(d, delta + column);
    const auto probability = [&](Index key) HWY_ATTR {
      const auto e = exp_below<T>(hn::MulSub(hn::Load(d, scores + key * tile + column), scale, shift));
      if constexpr (masked) return hn::IfThenElseZero(queries_that_see<T>(mask.words() + key, column), e);
      return e;
    };
    const auto gradient = [&](Index key, auto e) HWY_ATTR {
      const auto result = hn::Mul(e, hn::Sub(hn::Load(d, dp + key * tile + column), mean));
      if constexpr (masked) return hn::IfThenElseZero(queries_that_see<T>(mask.words() + key, column), result);
      return result;
    };
    for (Index key = seen.first; key < seen.last; key += 2) {
      const auto first = probability(key);
      const auto second = probability(key + 1);
      const auto first_gradient = gradient(key, first);
      const auto second_gradient = gradient(key + 1, second);
      p.put(key, column, first, second);
      ds.put(key, column, first_gradient, second_gradient);
    }
    if constexpr (masked) {
      clear_unseen<T>(seen, keys, p, column);
      clear_unseen<T>(seen, keys, ds, column);
    }
  }
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
