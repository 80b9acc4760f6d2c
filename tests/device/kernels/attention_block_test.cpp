#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/kernels/attention_oracle.hpp"
#include "stretto/error.hpp"
#include "support/tiers.hpp"

// Attention of blocks against its definition.
namespace stretto::kernels::tested {
namespace {

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
