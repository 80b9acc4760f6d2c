#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/kernels/kernel_data.hpp"
#include "device/kernels/tested_kernels.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/tiers.hpp"

// Attention of blocks against its definition.
namespace stretto::kernels::tested {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::int64_t kv_heads(const AttentionBlock& block) { return block.kv_heads > 0 ? block.kv_heads : block.heads; }

// Tensors of their own, or columns of wider rows.
TokenHeads heads(std::int64_t tokens, std::int64_t width, DType dtype, unsigned seed, std::int64_t before = 0,
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

Results run(const Given& given, DType results) {
  Results r(given, results);
  attention_block_forward(given.block, given.q, given.k, given.v, r.out, r.log_sum_exp);
  attention_block_backward(given.block, given.q, given.k, given.v, r.out, r.log_sum_exp, given.dout, r.dq, r.dk, r.dv);
  return r;
}
Results run(const Given& given) { return run(given, given.dtype()); }

// Elements as f64, row after row of the heads alone.
std::vector<double> numbers(const TokenHeads& from, std::int64_t width) {
  std::vector<double> result;
  for (std::int64_t row = 0; row < from.tensor.rows(); ++row) {
    for (std::int64_t c = 0; c < width; ++c)
      result.push_back(from.tensor.at(row * from.tensor.columns() + from.first_column + c));
  }
  return result;
}

// The definition in f64 with the whole matrix of scores, and its derivative by the chain rule.
Results oracle(const Given& given) {
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
  const double scale = 1 / std::sqrt(static_cast<double>(d));
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
          for (std::int64_t c = 0; c < d; ++c) p[n] += q[q_at + c] * k[seen[n] + c] * scale;
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
          const double ds = p[n] * (dp[n] - mean) * scale;
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
double error_of(const Tensor& actual, const Tensor& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    if (actual.at(i) == expected.at(i)) continue;  // -infinity
    const double error = std::abs(actual.at(i) - expected.at(i)) / std::max(1.0, std::abs(expected.at(i)));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

void expect_near(const Results& actual, const Results& expected, double tolerance, double tolerance_16) {
  EXPECT_LE(error_of(actual.out.tensor, expected.out.tensor), tolerance_16) << "out";
  EXPECT_LE(error_of(actual.log_sum_exp, expected.log_sum_exp), tolerance) << "log_sum_exp";
  EXPECT_LE(error_of(actual.dq.tensor, expected.dq.tensor), tolerance_16) << "dq";
  EXPECT_LE(error_of(actual.dk.tensor, expected.dk.tensor), tolerance_16) << "dk";
  EXPECT_LE(error_of(actual.dv.tensor, expected.dv.tensor), tolerance_16) << "dv";
}

bool same(const Tensor& a, const Tensor& b) { return values(a) == values(b); }

bool same(const Results& a, const Results& b) {
  return same(a.out.tensor, b.out.tensor) && same(a.log_sum_exp, b.log_sum_exp) && same(a.dq.tensor, b.dq.tensor) &&
         same(a.dk.tensor, b.dk.tensor) && same(a.dv.tensor, b.dv.tensor);
}

class Draw {
 public:
  explicit Draw(unsigned seed) : generator_(seed) {}
  std::int64_t operator()(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(generator_);
  }
  template <class T>
  T of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>((*this)(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }

 private:
  std::mt19937 generator_;
};

AttentionMask draw_mask(Draw& draw) {
  switch (draw(0, 5)) {
    case 0: return {.causal = false};
    case 1: return {.window = draw(1, 150)};
    case 2: return {.stride = draw(2, 40)};
    case 3: return {.window = draw(1, 60), .global = draw(1, 80)};
    case 4: return {.window = draw(1, 60), .stride = draw(1, 90), .global = draw(0, 10)};
    default: return {};
  }
}

Positions draw_positions(Draw& draw, std::int64_t rows) {
  Positions result{.first = draw(0, 200), .stride = draw.of<std::int64_t>({1, 1, 1, 2, 3, 7})};
  if (draw(0, 2) == 0) {
    result.split = draw(1, std::max<std::int64_t>(1, rows));
    result.second = draw(0, 400);
  }
  return result;
}

AttentionBlock draw_block(Draw& draw) {
  const std::int64_t longest = few_cases() ? 90 : 200;
  AttentionBlock block{.batch = draw(1, 2),
                       .queries = draw(1, longest),
                       .keys = draw(1, longest),
                       .heads = draw.of<std::int64_t>({1, 2, 4}),
                       .head_size = draw.of<std::int64_t>({1, 5, 8, 16, 33, 64})};
  block.kv_heads = draw.of<std::int64_t>({0, 1, block.heads});
  block.query_positions = draw_positions(draw, block.queries);
  block.key_positions = draw_positions(draw, block.keys);
  if (draw(0, 1) == 0) block.key_positions.stride = block.query_positions.stride;
  block.mask = draw_mask(draw);
  return block;
}

std::string text(const AttentionBlock& b) {
  const auto positions = [](const Positions& p) {
    return std::to_string(p.first) + "+" + std::to_string(p.stride) + "i from " + std::to_string(p.split) + " at " +
           std::to_string(p.second);
  };
  return std::to_string(b.batch) + " x " + std::to_string(b.queries) + " queries (" + positions(b.query_positions) + "), " +
         std::to_string(b.keys) + " keys (" + positions(b.key_positions) + "), " + std::to_string(b.heads) + "/" +
         std::to_string(b.kv_heads) + " heads of " + std::to_string(b.head_size) + ", causal " +
         std::to_string(b.mask.causal) + ", window " + std::to_string(b.mask.window) + ", stride " +
         std::to_string(b.mask.stride) + ", global " + std::to_string(b.mask.global);
}

TEST(AttentionBlock, RandomBlocksMatchTheDefinition) {
  const int blocks = few_cases() ? 12 : all_tests() ? 300 : 60;
  int empty_rows = 0;
  for (int i = 0; i < blocks; ++i) {
    // Where calls are slow, most blocks take turns: four days see all of them.
    if (calls_are_slow() && i >= 12 && static_cast<unsigned>(i) / 4 % 4 != seed_of_the_day() % 4) continue;
    Draw draw(100 + i);
    const AttentionBlock block = draw_block(draw);
    SCOPED_TRACE(text(block));
    for (const auto& [dtype, tolerance, tolerance_16] : {std::tuple{DType::f64, 1e-12, 1e-12},
                                                         {DType::f32, 1e-5, 1e-5},
                                                         {DType::bf16, 1e-5, 3e-2},
                                                         {DType::f16, 1e-5, 4e-3}}) {
      if (dtype == DType::f16 && i % 4 > 0) continue;
      SCOPED_TRACE(name(dtype));
      const Given given(block, dtype, 1, draw(0, 3), draw(0, 3));
      const Results expected = oracle(given);
      expect_near(run(given), expected, tolerance, tolerance_16);
      for (const double value : values(expected.log_sum_exp)) empty_rows += value == -infinity;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(empty_rows, 0) << "no row saw nothing";
}

// Documents of a few tokens to some tiles, which begin at positions that queries or keys have or have not.
std::vector<std::int32_t> draw_starts(Draw& draw, const AttentionBlock& block) {
  std::vector<std::int32_t> starts;
  for (std::int64_t b = 0; b < block.batch; ++b) {
    std::int64_t start = 0, next = draw(0, 150);
    for (std::int64_t i = 0; i < block.queries; ++i) {
      while (next <= block.query_positions.at(i)) next = (start = next) + draw(1, draw(0, 1) == 0 ? 9 : 150);
      starts.push_back(static_cast<std::int32_t>(start));
    }
  }
  return starts;
}

TEST(AttentionBlock, KeepsDocumentsApart) {
  const int blocks = few_cases() ? 12 : 30;
  bool differs = false;
  for (int i = 0; i < blocks; ++i) {
    Draw draw(900 + i);
    AttentionBlock block = draw_block(draw);
    block.mask = draw(0, 1) == 0 ? AttentionMask() : AttentionMask{.window = draw(1, 150)};
    for (Positions* const positions : {&block.query_positions, &block.key_positions}) {
      if (positions->split > 0) positions->second = positions->at(positions->split - 1) + draw(1, 100);
    }
    const std::vector<std::int32_t> starts = draw_starts(draw, block);
    SCOPED_TRACE(text(block));
    for (const auto& [dtype, tolerance, tolerance_16] :
         {std::tuple{DType::f64, 1e-12, 1e-12}, {DType::f32, 1e-5, 1e-5}, {DType::bf16, 1e-5, 3e-2}}) {
      Given given(block, dtype, 1, draw(0, 3), draw(0, 3));
      const Results together = oracle(given);
      given.block.starts = starts.data();
      const Results expected = oracle(given);
      expect_near(run(given), expected, tolerance, tolerance_16);
      differs = differs || error_of(together.out.tensor, expected.out.tensor) > 0.1;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_TRUE(differs) << "the control: nothing was kept apart";
}

// What lies before a document is not read: not a number there reaches nobody. Tiles have at most 64 keys.
TEST(AttentionBlock, SkipsTilesOfEarlierDocuments) {
  AttentionBlock block{.batch = 1, .queries = 64, .keys = 256, .heads = 1, .head_size = 8, .query_positions = {192}};
  const std::vector<std::int32_t> starts(64, 130);
  for (const bool apart : {true, false}) {
    block.starts = apart ? starts.data() : nullptr;
    Given given(block, DType::f32);
    for (std::int64_t row = 0; row < 128; ++row) given.v.tensor.set(row * 8, std::nan(""));
    const Results results = run(given);
    EXPECT_EQ(std::isnan(results.out.tensor.at(0)), !apart);
  }
}

// Processors that multiply bf16 round probabilities and gradients of scores to it, as FlashAttention does.
constexpr double rounded_probabilities = 1e-2;

TEST(AttentionBlock, ResultsInTheAccumulatorTypeAreNotRounded) {
  for (const auto& [dtype, tolerance] : {std::tuple{DType::bf16, rounded_probabilities}, {DType::f16, 1e-5}}) {
    const Given given({.batch = 1, .queries = 70, .keys = 90, .heads = 2, .head_size = 16, .query_positions = {20}}, dtype);
    const Results wide = run(given, DType::f32);
    expect_near(wide, oracle(given), 1e-5, tolerance);
    for (const TokenHeads* const result : {&wide.out, &wide.dq, &wide.dk, &wide.dv}) {
      const Tensor rounded(result->tensor.shape(), dtype);
      convert(result->tensor, rounded);
      EXPECT_FALSE(same(rounded, result->tensor));
    }
    Tensor rounded(wide.out.tensor.shape(), dtype);
    convert(wide.out.tensor, rounded);
    EXPECT_TRUE(same(rounded, run(given).out.tensor));
  }
}

// The keys of a whole sequence in pieces, in an order of its own; each piece's rows are copied out of the whole.
struct Piece {
  std::int64_t first, count, stride;  // rows first, first + stride, ...
};

Tensor rows_of(const Tensor& from, const Piece& piece, std::int64_t batch) {
  const std::int64_t all = from.rows() / batch;
  Tensor result({batch * piece.count, from.columns()}, from.dtype());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < piece.count; ++i) {
      for (std::int64_t c = 0; c < from.columns(); ++c) {
        result.set((b * piece.count + i) * from.columns() + c,
                   from.at((b * all + piece.first + i * piece.stride) * from.columns() + c));
      }
    }
  }
  return result;
}

void put_rows(const Tensor& from, const Piece& piece, std::int64_t batch, const Tensor& to) {
  const std::int64_t all = to.rows() / batch;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < piece.count; ++i) {
      for (std::int64_t c = 0; c < from.columns(); ++c) {
        to.set((b * all + piece.first + i * piece.stride) * from.columns() + c,
               from.at((b * piece.count + i) * from.columns() + c));
      }
    }
  }
}

enum class Loses { nothing, merging, a_hop_of_dq };

Results run_in_pieces(const Given& given, const std::vector<Piece>& pieces, Loses loses = Loses::nothing) {
  const DType sums = accumulator(given.dtype());
  Results r(given, sums);
  const std::int64_t batch = given.block.batch;
  const auto block_of = [&](const Piece& piece) {
    AttentionBlock block = given.block;
    block.keys = piece.count;
    block.key_positions = {.first = given.block.key_positions.at(piece.first),
                           .stride = given.block.key_positions.stride * piece.stride};
    return block;
  };
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    attention_block_forward(block_of(pieces[n]), given.q, {rows_of(given.k.tensor, pieces[n], batch), given.k.first_column},
                            {rows_of(given.v.tensor, pieces[n], batch), given.v.first_column}, r.out, r.log_sum_exp,
                            n > 0 && loses != Loses::merging);
  }
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    const Piece& piece = pieces[n];
    const TokenHeads dk{Tensor({batch * piece.count, r.dk.tensor.columns()}, sums)};
    const TokenHeads dv{Tensor(dk.tensor.shape(), sums)};
    attention_block_backward(block_of(piece), given.q, {rows_of(given.k.tensor, piece, batch), given.k.first_column},
                             {rows_of(given.v.tensor, piece, batch), given.v.first_column}, r.out, r.log_sum_exp, given.dout,
                             r.dq, dk, dv, {.queries = n > 0 && loses != Loses::a_hop_of_dq});
    put_rows(dk.tensor, piece, batch, r.dk.tensor);
    put_rows(dv.tensor, piece, batch, r.dv.tensor);
  }
  return r;
}

const std::vector<std::vector<Piece>> orders = {
    {{0, 50, 1}, {50, 50, 1}, {100, 50, 1}},             // in order
    {{100, 50, 1}, {0, 50, 1}, {50, 50, 1}},             // a ring
    {{120, 30, 1}, {0, 1, 1}, {65, 55, 1}, {1, 64, 1}},  // ragged
    {{1, 50, 3}, {2, 50, 3}, {0, 50, 3}},                // striped
};

TEST(AttentionBlock, BlocksOfKeysInAnyOrderGiveTheWhole) {
  for (const AttentionMask& mask :
       {AttentionMask{}, {.causal = false}, {.window = 33}, {.stride = 16}, {.window = 9, .global = 5}}) {
    for (const auto& [dtype, tolerance] :
         {std::tuple{DType::f64, 1e-13}, {DType::f32, 2e-6}, {DType::bf16, rounded_probabilities}, {DType::f16, 2e-6}}) {
      if (few_cases() && dtype != DType::f64 && (mask.sparse() || dtype == DType::f16)) continue;
      const Given given(
          {.batch = 2, .queries = 150, .keys = 150, .heads = 2, .head_size = calls_are_slow() ? 8 : 24, .mask = mask},
          dtype);
      const Results whole = run(given, accumulator(dtype));
      for (const auto& pieces : orders) {
        if (few_cases() && dtype != DType::f64 && &pieces != &orders[2]) continue;
        SCOPED_TRACE(testing::Message() << name(dtype) << ", first piece at " << pieces[0].first);
        expect_near(run_in_pieces(given, pieces), whole, std::min(tolerance, 2e-6), tolerance);
      }
      if (few_cases()) continue;
      EXPECT_GT(error_of(run_in_pieces(given, orders[1], Loses::merging).out.tensor, whole.out.tensor), 0.1) << "control";
      EXPECT_GT(error_of(run_in_pieces(given, orders[1], Loses::a_hop_of_dq).dq.tensor, whole.dq.tensor), 0.1) << "control";
    }
  }
}

// Scores of +-1e4: the exponential of none of them is a number.
TEST(AttentionBlock, LargeScoresDoNotOverflow) {
  for (const auto& [dtype, tolerance] : {std::tuple{DType::f64, 1e-12}, {DType::f32, 1e-5}}) {
    const Given given({.batch = 1, .queries = 150, .keys = 150, .heads = 1, .head_size = 16, .mask = {.causal = false}},
                      dtype);
    for (std::int64_t i = 0; i < 150; ++i) {
      for (std::int64_t c = 0; c < 16; ++c) {
        given.q.tensor.set(i * 16 + c, i % 2 == 0 ? 50 : -50);
        given.k.tensor.set(i * 16 + c, 50 - static_cast<double>(i) / 4);  // scores from 10000 down to 2500, and up again
      }
    }
    const Results expected = oracle(given);
    EXPECT_EQ(expected.log_sum_exp.at(0), 10000);
    for (const auto& pieces : orders) expect_near(run_in_pieces(given, pieces), expected, tolerance, 100 * tolerance);
  }
}

TEST(AttentionBlock, ABlockThatARowDoesNotSeeKeepsItsResults) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Given given({.batch = 1,
                 .queries = 100,
                 .keys = 80,
                 .heads = 2,
                 .head_size = 16,
                 .query_positions = {100},
                 .key_positions = {20}},
                dtype);
    const Results before = run(given);
    const Results after = run(given);
    given.block.key_positions = {150};  // the queries from row 50 on see some of these keys
    attention_block_forward(given.block, given.q, given.k, given.v, after.out, after.log_sum_exp, true);
    std::int64_t changed = 0;
    for (std::int64_t i = 0; i < before.out.tensor.size(); ++i) {
      if (i < 50 * 32) {
        ASSERT_EQ(after.out.tensor.at(i), before.out.tensor.at(i)) << i;
      } else {
        changed += after.out.tensor.at(i) != before.out.tensor.at(i);
      }
    }
    for (const std::int64_t row : {0, 49, 100, 149}) EXPECT_EQ(after.log_sum_exp.at(row), before.log_sum_exp.at(row));
    EXPECT_GT(changed, 50 * 32 / 2) << "control";
    // A block that nobody sees: merged, it changes nothing; alone, it is nothing.
    given.block.key_positions = {1000};
    attention_block_forward(given.block, given.q, given.k, given.v, before.out, before.log_sum_exp, true);
    attention_block_backward(given.block, given.q, given.k, given.v, before.out, before.log_sum_exp, given.dout, before.dq,
                             before.dk, before.dv, {.queries = true, .keys = true});
    EXPECT_EQ(before.log_sum_exp.at(0), after.log_sum_exp.at(0));
    const Results alone = run(given);
    for (const Tensor& tensor : {alone.out.tensor, alone.dq.tensor, alone.dk.tensor, alone.dv.tensor}) {
      for (const double value : values(tensor)) ASSERT_EQ(value, 0);
    }
    for (const double value : values(alone.log_sum_exp)) ASSERT_EQ(value, -infinity);
  }
}

TEST(AttentionBlock, GradientsAreAddedToThoseOfBothSides) {
  const Given given(
      {.batch = 1, .queries = 40, .keys = 50, .heads = 2, .head_size = 8, .kv_heads = 1, .query_positions = {10}},
      DType::bf16);
  const Results once = run(given, DType::f32);
  const Results sums = run(given, DType::f32);
  attention_block_backward(given.block, given.q, given.k, given.v, sums.out, sums.log_sum_exp, given.dout, sums.dq, sums.dk,
                           sums.dv, {.queries = true, .keys = true});
  const auto expect_twice = [](const TokenHeads& sum, const TokenHeads& part) {
    for (std::int64_t i = 0; i < part.tensor.size(); ++i) ASSERT_EQ(sum.tensor.at(i), 2 * part.tensor.at(i)) << i;
  };
  expect_twice(sums.dq, once.dq);
  expect_twice(sums.dk, once.dk);
  expect_twice(sums.dv, once.dv);
}

TEST(AttentionBlock, AFullMaskIsTheDenseResultBitByBit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    AttentionBlock block{.batch = 1, .queries = 150, .keys = 150, .heads = 2, .head_size = 16};
    const Results dense = run(Given(block, dtype));
    for (const AttentionMask& mask :
         {AttentionMask{.window = 150}, {.stride = 1}, {.stride = 200}, {.window = 1, .global = 150}, {.global = 7}}) {
      block.mask = mask;
      EXPECT_TRUE(same(run(Given(block, dtype)), dense)) << name(dtype) << ", window " << mask.window;
    }
    block.mask = {.window = 149};
    EXPECT_FALSE(same(run(Given(block, dtype)), dense)) << "control";
  }
}

TEST(AttentionBlock, TheDenseCallIsABlock) {
  for (const DType dtype : compute_types) {
    constexpr std::int64_t hidden = 32;
    const Tensor qkv = random_tensor({2 * 100, 3 * hidden}, dtype);
    const Tensor dqkv(qkv.shape(), dtype);
    const Tensor block_dqkv(qkv.shape(), dtype);
    const Given given({.batch = 2, .queries = 100, .keys = 100, .heads = 2, .head_size = 16}, dtype);
    const Results dense(given, dtype);
    const Results block(given, dtype);
    attention_forward({2, 100, 2, 16}, qkv, dense.out.tensor, dense.log_sum_exp);
    attention_backward({2, 100, 2, 16}, qkv, dense.out.tensor, dense.log_sum_exp, given.dout.tensor, dqkv);
    attention_block_forward(given.block, {qkv}, {qkv, hidden}, {qkv, 2 * hidden}, block.out, block.log_sum_exp);
    attention_block_backward(given.block, {qkv}, {qkv, hidden}, {qkv, 2 * hidden}, block.out, block.log_sum_exp, given.dout,
                             {block_dqkv}, {block_dqkv, hidden}, {block_dqkv, 2 * hidden});
    if (on_real_gpu() && is_narrow(dtype)) {  // cuDNN
      EXPECT_LE(error_of(block_dqkv, dqkv), 3e-2);
    } else {
      EXPECT_TRUE(same(dqkv, block_dqkv)) << name(dtype);
      EXPECT_TRUE(same(dense.out.tensor, block.out.tensor)) << name(dtype);
    }
  }
}

// What nobody sees is not read: not a number there reaches nobody. Tiles have at most 64 keys.
TEST(AttentionBlock, TilesThatNobodySeesAreSkipped) {
  AttentionBlock block{.batch = 1, .queries = 128, .keys = 512, .heads = 1, .head_size = 8, .query_positions = {300}};
  const auto finite = [&](const AttentionMask& mask, std::int64_t first_key, std::int64_t last_key) {
    block.mask = mask;
    const Given given(block, DType::f32);
    for (std::int64_t i = first_key * 8; i < last_key * 8; ++i) {
      given.k.tensor.set(i, std::nan(""));
      given.v.tensor.set(i, std::nan(""));
    }
    const Results r = run(given);
    bool result = true;
    for (const Tensor& tensor : {r.out.tensor, r.log_sum_exp, r.dq.tensor, r.dk.tensor, r.dv.tensor}) {
      for (const double value : values(tensor)) result = result && std::isfinite(value);
    }
    return result;
  };
  EXPECT_TRUE(finite({}, 448, 512)) << "keys after all queries";
  EXPECT_TRUE(finite({.window = 32}, 0, 256)) << "keys before all windows";
  EXPECT_TRUE(finite({.window = 32, .global = 64}, 64, 256)) << "keys between the global ones and all windows";
  block.query_positions = {0, 64};  // queries at multiples of 64
  block.queries = 7;
  EXPECT_TRUE(finite({.stride = 64}, 448, 512)) << "keys after all queries";
  EXPECT_FALSE(finite({.causal = false}, 448, 512)) << "control";
  EXPECT_FALSE(finite({.window = 32, .global = 128}, 64, 256)) << "control";
}

TEST(AttentionBlock, NothingToDo) {
  run(Given({.batch = 0, .queries = 5, .keys = 5, .heads = 1, .head_size = 8}, DType::f32));
  run(Given({.batch = 1, .queries = 0, .keys = 5, .heads = 1, .head_size = 8}, DType::f32));
  const Results r = run(Given({.batch = 1, .queries = 5, .keys = 0, .heads = 1, .head_size = 8}, DType::f32));
  for (const double value : values(r.out.tensor)) EXPECT_EQ(value, 0);
  for (const double value : values(r.log_sum_exp)) EXPECT_EQ(value, -infinity);
}

TEST(AttentionBlock, RefusesWhatDoesNotFit) {
  const AttentionBlock block{.batch = 1, .queries = 4, .keys = 6, .heads = 2, .head_size = 8};
  const Given given(block, DType::bf16);
  const Results r(given, DType::bf16);
  const auto forward = [&](const AttentionBlock& b, const TokenHeads& q, bool merge = false) {
    attention_block_forward(b, q, given.k, given.v, r.out, r.log_sum_exp, merge);
  };
  EXPECT_NO_THROW(forward(block, given.q));
  EXPECT_THROW(forward(block, given.q, true), Error) << "merging rounds to 16 bits";
  EXPECT_THROW(forward(block, {given.q.tensor, 1}), Error) << "columns beyond the row";
  EXPECT_THROW(forward(block, given.k), Error) << "rows of keys";
  const auto with = [&](auto change) {
    AttentionBlock changed = block;
    change(changed);
    return changed;
  };
  EXPECT_THROW(forward(with([](AttentionBlock& b) { b.kv_heads = 3; }), given.q), Error);
  EXPECT_THROW(forward(with([](AttentionBlock& b) { b.query_positions.stride = 0; }), given.q), Error);
  EXPECT_THROW(forward(with([](AttentionBlock& b) { b.mask.window = -1; }), given.q), Error);
  EXPECT_THROW(forward(with([](AttentionBlock& b) { b.mask = {.causal = false, .window = 3}; }), given.q), Error);
  EXPECT_THROW(attention_block_backward(block, given.q, given.k, given.v, r.out, r.log_sum_exp, given.dout, r.dq, r.dk, r.dv,
                                        {.keys = true}),
               Error)
      << "sums in 16 bits";
}

}  // namespace
}  // namespace stretto::kernels::tested
