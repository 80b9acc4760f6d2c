#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "device/kernels/attention_oracle.hpp"

// Blocks of keys, one after the other, give what attention to all keys gives.
namespace stretto::kernels::tested {
namespace {

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

}  // namespace
}  // namespace stretto::kernels::tested
