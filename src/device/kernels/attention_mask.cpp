#include "stretto/attention_mask.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stretto::kernels {
namespace {

constexpr std::int64_t floor_of(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
constexpr std::int64_t ceiling_of(std::int64_t a, std::int64_t b) { return -floor_of(-a, b); }
constexpr std::int64_t modulo(std::int64_t a, std::int64_t b) { return a - floor_of(a, b) * b; }

// The x in [0, modulus) with x * a = 1 modulo it, by Euclid's algorithm; the two have no common divisor.
std::int64_t inverse_of(std::int64_t a, std::int64_t modulus) {
  std::int64_t x = 1, next_x = 0, rest = modulo(a, modulus), next_rest = modulus;
  while (next_rest != 0) {
    const std::int64_t times = rest / next_rest;
    rest = std::exchange(next_rest, rest - times * next_rest);
    x = std::exchange(next_x, x - times * next_x);
  }
  return modulo(x, modulus);
}

// The sum of max(0, first + i * step) for i in [0, count).
std::int64_t sum_of_ramp(std::int64_t first, std::int64_t step, std::int64_t count) {
  const std::int64_t zeros = first > 0 ? 0 : -first / step + 1;
  const std::int64_t left = count - zeros;
  if (left <= 0) return 0;
  return left * (2 * (first + zeros * step) + (left - 1) * step) / 2;
}

// The pairs at distances in [from, to) that are multiples of `multiple`, for runs of equal strides.
std::int64_t pairs_at(const TokenRun& queries, const TokenRun& keys, std::int64_t from, std::int64_t to,
                      std::int64_t multiple) {
  const std::int64_t i = queries.count, j = keys.count, stride = queries.stride;
  if (i == 0 || j == 0) return 0;
  const std::int64_t farthest = queries.last() - keys.first;
  if (from > farthest) return 0;
  // Query x and key y of their runs, with e = x - y, are at the distance zeroth + e * stride.
  const std::int64_t zeroth = queries.first - keys.first;
  std::int64_t first = std::max(1 - j, ceiling_of(from - zeroth, stride));
  const std::int64_t last = floor_of(std::min(to - 1, farthest) - zeroth, stride);
  const std::int64_t common = std::gcd(stride, multiple);
  if (zeroth % common != 0) return 0;
  const std::int64_t step = multiple / common;
  if (step > 1) first += modulo(-zeroth / common * inverse_of(stride / common, step) - first, step);
  if (first > last) return 0;
  // The number of pairs with difference e is the length of the overlap of [0, i) and [e, e + j): a trapezoid over e.
  const std::int64_t count = (last - first) / step + 1;
  return sum_of_ramp(first + j, step, count) - sum_of_ramp(first, step, count) - sum_of_ramp(first + j - i, step, count) +
         sum_of_ramp(first - i, step, count);
}

std::int64_t pairs_of(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys) {
  if (!mask.causal) return queries.count * keys.count;
  if (queries.stride != keys.stride && queries.count > 1) {
    std::int64_t sum = 0;
    for (std::int64_t x = 0; x < queries.count; ++x) {
      sum += pairs_of(mask, {queries.first + x * queries.stride, keys.stride, 1}, keys);
    }
    return sum;
  }
  const TokenRun aligned{queries.first, keys.stride, queries.count};
  std::int64_t sum = pairs_at(aligned, keys, 0, mask.near(), 1);
  if (!mask.sparse()) return sum;
  // Keys farther away: the sequence's first ones, plus those at multiples of the stride, minus those that are both.
  const std::int64_t global = std::clamp<std::int64_t>(ceiling_of(mask.global - keys.first, keys.stride), 0, keys.count);
  const TokenRun first_keys{keys.first, keys.stride, global};
  sum += pairs_at(aligned, first_keys, mask.near(), INT64_MAX, 1);
  if (mask.stride == 0) return sum;
  return sum + pairs_at(aligned, keys, mask.near(), INT64_MAX, mask.stride) -
         pairs_at(aligned, first_keys, mask.near(), INT64_MAX, mask.stride);
}

}  // namespace

std::int64_t AttentionMask::pairs(const TokenRange& queries, const TokenRange& keys) const {
  std::int64_t sum = 0;
  for (const bool later_queries : {false, true}) {
    for (const bool later_keys : {false, true}) {
      sum += pairs_of(*this, run_of(queries, later_queries), run_of(keys, later_keys));
    }
  }
  return sum;
}

}  // namespace stretto::kernels
