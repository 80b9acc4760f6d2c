#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "device/kernels/kernel_data.hpp"
#include "device/kernels/tested_kernels.hpp"
#include "stretto/kernels.hpp"

// Attention of a block, forward and backward, and by its definition.
namespace stretto::kernels::tested {

constexpr double infinity = std::numeric_limits<double>::infinity();

inline std::int64_t kv_heads(const AttentionBlock& block) { return block.kv_heads > 0 ? block.kv_heads : block.heads; }

// Tensors of their own, or columns of wider rows.
inline TokenHeads heads(std::int64_t tokens, std::int64_t width, DType dtype, unsigned seed, std::int64_t before = 0,
                        std::int64_t after = 0) {
  return {random_tensor({tokens, before + width + after}, dtype, seed), before};
}

struct Given {
  AttentionBlock block;
  TokenHeads q, k, v, dout;

  Given(const AttentionBlock& b, DType dtype, unsigned seed = 1, std::int64_t before = 0, std::int64_t after = 0)
      : block(b),
        q(heads(b.batch * b.queries, b.heads * b.head_size, dtype, seed, before, after)),
        k(heads(b.batch * b.keys, kv_heads(b) * b.head_size, dtype, seed + 1, before, after)),
        v(heads(b.batch * b.keys, kv_heads(b) * b.head_size, dtype, seed + 2, after, before)),
        dout(heads(b.batch * b.queries, b.heads * b.head_size, dtype, seed + 3)) {}
  DType dtype() const { return q.tensor.dtype(); }
};

struct Results {
  TokenHeads out;
  Tensor log_sum_exp;
  TokenHeads dq, dk, dv;

  Results(const Given& given, DType dtype)
      : out{Tensor(given.dout.tensor.shape(), dtype)},
        log_sum_exp({given.block.batch, given.block.heads, given.block.queries}, accumulator(dtype)),
        dq{Tensor(given.dout.tensor.shape(), dtype)},
        dk{Tensor({given.block.batch * given.block.keys, kv_heads(given.block) * given.block.head_size}, dtype)},
        dv{Tensor(dk.tensor.shape(), dtype)} {}
};

inline Results run(const Given& given, DType results) {
  Results r(given, results);
  attention_block_forward(given.block, given.q, given.k, given.v, r.out, r.log_sum_exp);
  attention_block_backward(given.block, given.q, given.k, given.v, r.out, r.log_sum_exp, given.dout, r.dq, r.dk, r.dv);
  return r;
}
inline Results run(const Given& given) { return run(given, given.dtype()); }

// Elements as f64, row after row of the heads alone.
inline std::vector<double> numbers(const TokenHeads& from, std::int64_t width) {
  std::vector<double> result;
  for (std::int64_t row = 0; row < from.tensor.rows(); ++row) {
    for (std::int64_t c = 0; c < width; ++c)
      result.push_back(from.tensor.at(row * from.tensor.columns() + from.first_column + c));
  }
  return result;
}

// The definition in f64 with the whole matrix of scores, and its derivative by the chain rule.
inline Results oracle(const Given& given) {
  const AttentionBlock& block = given.block;
  const std::int64_t d = block.head_size;
  const std::int64_t width = block.heads * d;
  const std::int64_t kv_width = kv_heads(block) * d;
  Results r(given, DType::f64);
  for (const Tensor& sum : {r.out.tensor, r.dq.tensor, r.dk.tensor, r.dv.tensor}) sum.zero();
  const auto q = numbers(given.q, width);
  const auto k = numbers(given.k, kv_width);
  const auto v = numbers(given.v, kv_width);
  const auto dout = numbers(given.dout, width);
  auto* const out = r.out.tensor.data<double>();
  auto* const dq = r.dq.tensor.data<double>();
  auto* const dk = r.dk.tensor.data<double>();
  auto* const dv = r.dv.tensor.data<double>();
  const double softmax_scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::int64_t b = 0; b < block.batch; ++b) {
    for (std::int64_t h = 0; h < block.heads; ++h) {
      const std::int64_t kv_head = h / (block.heads / kv_heads(block));
      for (std::int64_t i = 0; i < block.queries; ++i) {
        const std::size_t q_at = static_cast<std::size_t>((b * block.queries + i) * width + h * d);
        std::vector<std::size_t> seen;
        for (std::int64_t j = 0; j < block.keys; ++j) {
          const std::int64_t key = block.key_positions.at(j);
          const bool has_begun = block.starts == nullptr || block.starts[b * block.queries + i] <= key;
          if (has_begun && block.mask.sees(block.query_positions.at(i), key))
            seen.push_back(static_cast<std::size_t>((b * block.keys + j) * kv_width + kv_head * d));
        }
        std::vector<double> p(seen.size());
        double top = -infinity;
        for (std::size_t n = 0; n < seen.size(); ++n) {
          for (std::int64_t c = 0; c < d; ++c) p[n] += q[q_at + c] * k[seen[n] + c] * softmax_scale;
          top = std::max(top, p[n]);
        }
        double sum = 0;
        for (double& score : p) sum += score = std::exp(score - top);
        r.log_sum_exp.set((b * block.heads + h) * block.queries + i, seen.empty() ? -infinity : top + std::log(sum));
        std::vector<double> dp(seen.size());
        double mean = 0;
        for (std::size_t n = 0; n < seen.size(); ++n) {
          p[n] /= sum;
          for (std::int64_t c = 0; c < d; ++c) {
            out[q_at + c] += p[n] * v[seen[n] + c];
            dp[n] += dout[q_at + c] * v[seen[n] + c];
            dv[seen[n] + c] += p[n] * dout[q_at + c];
          }
          mean += p[n] * dp[n];
        }
        for (std::size_t n = 0; n < seen.size(); ++n) {
          const double ds = p[n] * (dp[n] - mean) * softmax_scale;
          for (std::int64_t c = 0; c < d; ++c) {
            dq[q_at + c] += ds * k[seen[n] + c];
            dk[seen[n] + c] += ds * q[q_at + c];
          }
        }
      }
    }
  }
  return r;
}

// The largest error relative to the larger of 1 and the expected value; NaN if there is one.
inline double error_of(const Tensor& actual, const Tensor& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    if (actual.at(i) == expected.at(i)) continue;  // -infinity
    const double error = std::abs(actual.at(i) - expected.at(i)) / std::max(1.0, std::abs(expected.at(i)));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

inline void expect_near(const Results& actual, const Results& expected, double tolerance, double tolerance_16) {
  EXPECT_LE(error_of(actual.out.tensor, expected.out.tensor), tolerance_16) << "out";
  EXPECT_LE(error_of(actual.log_sum_exp, expected.log_sum_exp), tolerance) << "log_sum_exp";
  EXPECT_LE(error_of(actual.dq.tensor, expected.dq.tensor), tolerance_16) << "dq";
  EXPECT_LE(error_of(actual.dk.tensor, expected.dk.tensor), tolerance_16) << "dk";
  EXPECT_LE(error_of(actual.dv.tensor, expected.dv.tensor), tolerance_16) << "dv";
}

inline bool same(const Tensor& a, const Tensor& b) { return values(a) == values(b); }

inline bool same(const Results& a, const Results& b) {
  return same(a.out.tensor, b.out.tensor) && same(a.log_sum_exp, b.log_sum_exp) && same(a.dq.tensor, b.dq.tensor) &&
         same(a.dk.tensor, b.dk.tensor) && same(a.dv.tensor, b.dv.tensor);
}

// Processors that multiply bf16 round probabilities and gradients of scores to it, as FlashAttention does.
inline constexpr double rounded_probabilities = 1e-2;

}  // namespace stretto::kernels::tested
