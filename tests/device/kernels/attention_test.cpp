#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <tuple>

#include "device/kernels/attention_oracle.hpp"
#include "stretto/error.hpp"

namespace stretto::kernels::tested {
namespace {

struct Attention {
  AttentionShape shape;
  Tensor qkv, dout, out, log_sum_exp, dqkv;

  Attention(const AttentionShape& s, DType dtype)
      : shape(s),
        qkv(random_tensor({s.batch * s.sequence, 3 * s.heads * s.head_size}, dtype, 1)),
        dout(random_tensor({s.batch * s.sequence, s.heads * s.head_size}, dtype, 2)),
        out(dout.shape(), dtype),
        log_sum_exp({s.batch, s.heads, s.sequence}, accumulator(dtype)),
        dqkv(qkv.shape(), dtype) {}

  void run() const {
    attention_forward(shape, qkv, out, log_sum_exp);
    attention_backward(shape, qkv, out, log_sum_exp, dout, dqkv);
  }
};

// The largest errors against the definition.
struct Errors {
  double out, log_sum_exp, dqkv;

  explicit Errors(const Attention& actual) {
    const auto& [batch, sequence, heads, head_size] = actual.shape;
    const std::int64_t hidden = heads * head_size;
    Given given({.batch = batch, .queries = sequence, .keys = sequence, .heads = heads, .head_size = head_size}, DType::f64);
    given.q = {actual.qkv};
    given.k = {actual.qkv, hidden};
    given.v = {actual.qkv, 2 * hidden};
    given.dout = {actual.dout};
    const Results expected = oracle(given);
    const Tensor expected_dqkv(actual.qkv.shape(), DType::f64);
    const Tensor* const parts[] = {&expected.dq.tensor, &expected.dk.tensor, &expected.dv.tensor};
    for (int i = 0; i < 3; ++i) kernels::copy_columns(*parts[i], 0, expected_dqkv, i * hidden, hidden);
    out = error_of(actual.out, expected.out.tensor);
    log_sum_exp = error_of(actual.log_sum_exp, expected.log_sum_exp);
    dqkv = error_of(actual.dqkv, expected_dqkv);
  }
};

class AttentionSizes : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(AttentionSizes, ForwardAndBackwardMatchTheDefinition) {
  if (few_cases() && std::get<0>(GetParam()) >= 300 && std::get<1>(GetParam()) > 8)
    GTEST_SKIP() << "takes seconds on the stand-in";
  const auto [sequence, head_size] = GetParam();
  for (const auto& [dtype, tolerance, tolerance_16] : {std::tuple{DType::f64, 1e-12, 1e-12},
                                                       {DType::f32, 1e-5, 1e-5},
                                                       {DType::bf16, 1e-5, 3e-2},
                                                       {DType::f16, 1e-5, 4e-3}}) {
    if (few_cases() && dtype == DType::f16 && sequence > 65) continue;  // is loaded and stored as in shorter sequences
    SCOPED_TRACE(name(dtype));
    const bool takes_seconds = calls_are_slow() && sequence >= 300;
    const Attention actual({takes_seconds ? 1 : 2, sequence, takes_seconds ? 2 : 3, head_size}, dtype);
    actual.run();
    const Errors errors(actual);
    EXPECT_LE(errors.out, tolerance_16);
    EXPECT_LE(errors.log_sum_exp, tolerance);
    EXPECT_LE(errors.dqkv, tolerance_16);
  }
}

// 300 and 515 tokens need more than one block of keys.
INSTANTIATE_TEST_SUITE_P(Ragged, AttentionSizes,
                         testing::Combine(testing::Values(1, 5, 64, 65, 130, 300, 515), testing::Values(1, 8, 33, 64)),
                         [](const auto& parameter) {
                           return "sequence_" + std::to_string(std::get<0>(parameter.param)) + "_head_size_" +
                                  std::to_string(std::get<1>(parameter.param));
                         });

// Scores far beyond the range of exp that rise from block to block, so that every block scales the earlier sums.
TEST(Attention, LargeRisingScores) {
  const Attention actual({1, 600, 1, 8}, DType::f64);
  for (std::int64_t i = 0; i < 600; ++i) {
    for (std::int64_t c = 0; c < 8; ++c) actual.qkv.set(i * 24 + c, 30);
    for (std::int64_t c = 0; c < 8; ++c) actual.qkv.set(i * 24 + 8 + c, static_cast<double>(i) / 16);
  }
  actual.run();
  const Errors errors(actual);
  EXPECT_LE(errors.out, 1e-12);
  EXPECT_LE(errors.log_sum_exp, 1e-12);
  EXPECT_LE(errors.dqkv, 1e-10);
}

// exp(-log-sum-exp) is beyond the range of f32 here: values of keys that a query does not see must not get into sums.
TEST(Attention, ScoresFarBelowZero) {
  for (const auto& [dtype, tolerance] : {std::tuple{DType::f64, 1e-12}, {DType::f32, 1e-5}, {DType::bf16, 1e-5}}) {
    for (const std::int64_t sequence : {64, 192, 200}) {
      SCOPED_TRACE(testing::Message() << name(dtype) << ", " << sequence << " tokens");
      const Attention actual({1, sequence, 2, 64}, dtype);
      for (std::int64_t i = 0; i < sequence; ++i) {
        for (const std::int64_t head : {0, 64}) {
          actual.qkv.set(i * 384 + head, 8);
          actual.qkv.set(i * 384 + 128 + head, -120);  // a score of about -120
        }
      }
      actual.run();
      EXPECT_LE(Errors(actual).log_sum_exp, tolerance);
      for (std::int64_t i = 0; i < actual.dqkv.size(); ++i) ASSERT_TRUE(std::isfinite(actual.dqkv.at(i))) << "element " << i;
    }
  }
}

TEST(Attention, ATokenDoesNotSeeLaterOnes) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Attention before({1, 150, 2, 16}, dtype);
    const Attention after({1, 150, 2, 16}, dtype);
    constexpr std::int64_t changed = 71;
    for (std::int64_t c = 0; c < after.qkv.columns(); ++c) after.qkv.set(changed * after.qkv.columns() + c, 9);
    before.run();
    after.run();
    for (std::int64_t i = 0; i < before.out.size(); ++i) {
      if (i < changed * before.out.columns()) {
        ASSERT_EQ(before.out.at(i), after.out.at(i)) << i;
      }
    }
    EXPECT_NE(before.out.at(changed * before.out.columns()), after.out.at(changed * before.out.columns()));
  }
}

TEST(Attention, SequencesAndHeadsAreIndependent) {
  const Attention whole({3, 70, 2, 8}, DType::f32);
  whole.run();
  const Attention one({1, 70, 2, 8}, DType::f32);
  one.qkv.copy_from(whole.qkv.view(70 * 48, {70, 48}));
  one.dout.copy_from(whole.dout.view(70 * 16, {70, 16}));
  one.run();
  for (std::int64_t i = 0; i < one.out.size(); ++i) ASSERT_EQ(one.out.at(i), whole.out.at(70 * 16 + i));
  for (std::int64_t i = 0; i < one.dqkv.size(); ++i) ASSERT_EQ(one.dqkv.at(i), whole.dqkv.at(70 * 48 + i));
}

TEST(Attention, NeverHoldsTheMatrixOfScores) {
  HOST_ONLY("memory_use counts what the test holds on both devices");
  constexpr std::int64_t sequence = 2048;
  const Attention attention({1, sequence, 1, 64}, DType::f32);
  // The peak never falls: ballast raises the memory in use close to it, so that the memory of the call shows.
  const std::size_t room = memory_use().peak_bytes - memory_use().bytes;
  const Tensor ballast({static_cast<std::int64_t>(room / 4)}, DType::f32);
  const std::size_t before = memory_use().peak_bytes;
  attention.run();
  EXPECT_LT(memory_use().peak_bytes - before, sequence * sequence * sizeof(float) / 3);
}

TEST(Attention, ThreadsDoNotDisturbEachOther) {
  const Attention expected({2, 130, 2, 32}, DType::f32);
  expected.run();
  std::vector<Attention> results;
  for (int i = 0; i < 4; ++i) results.emplace_back(expected.shape, DType::f32);
  {
    std::vector<std::jthread> threads;
    for (const Attention& result : results) threads.emplace_back([&result] { result.run(); });
  }
  for (const Attention& result : results) {
    for (std::int64_t i = 0; i < expected.dqkv.size(); ++i) ASSERT_EQ(result.dqkv.at(i), expected.dqkv.at(i));
  }
}

TEST(Attention, NothingToDo) { Attention({0, 16, 2, 8}, DType::f32).run(); }

TEST(Attention, RefusesWhatDoesNotFit) {
  const Attention a({1, 4, 2, 8}, DType::f32);
  EXPECT_THROW(attention_forward({1, 5, 2, 8}, a.qkv, a.out, a.log_sum_exp), Error);
  EXPECT_THROW(attention_forward(a.shape, a.qkv, Tensor(a.out.shape(), DType::f64), a.log_sum_exp), Error);
  EXPECT_THROW(attention_backward(a.shape, a.qkv, a.out, a.log_sum_exp, a.qkv, a.dqkv), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
