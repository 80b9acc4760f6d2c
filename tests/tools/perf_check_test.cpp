// The checker of stretto-perf: it accepts right results, and finds every wrong one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "perf/buffers.hpp"
#include "perf/cases.hpp"
#include "perf/values.hpp"

namespace perf {
namespace {

using stretto::DType;
using stretto::ReduceOp;
using stretto::Tensor;

Case case_of(const char* test, int ranks, DType dtype, ReduceOp op = ReduceOp::sum, std::int64_t bytes = 4000) {
  return Case::of_bytes(test_from_name(test), ranks, ranks - 1, dtype, op, bytes);
}

Tensor part(const Values& values, DType dtype, int source, std::int64_t count) {
  Tensor filled({count}, dtype);
  values.fill({source, 0, count}, filled.raw());
  return filled;
}

class Exactness : public testing::TestWithParam<DType> {};

// Rounding to the type after every addition, in any order, changes nothing: an algorithm cannot be blamed for its order.
TEST_P(Exactness, SumsAndProductsDoNotDependOnTheirOrder) {
  const DType dtype = GetParam();
  constexpr std::int64_t count = 200;
  std::mt19937 random(7);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::premul_sum}) {
    for (const int ranks : {1, 2, 3, 9, 16}) {
      const Values values(case_of("all_reduce", ranks, dtype, op), 3);
      std::vector<Tensor> inputs;
      for (int rank = 0; rank < ranks; ++rank) inputs.push_back(part(values, dtype, rank, count));
      const Tensor reduced = part(values, dtype, SourceRange::reduced, count);
      Tensor sum({1}, dtype);
      bool all_zero = true;
      std::vector<int> order(ranks);
      for (int rank = 0; rank < ranks; ++rank) order[rank] = rank;
      for (std::int64_t i = 0; i < count; ++i) {
        std::shuffle(order.begin(), order.end(), random);
        sum.set(0, op == ReduceOp::prod ? 1 : 0);
        for (const int rank : order) {
          const double factor = op == ReduceOp::premul_sum ? Values::factor(rank) : 1;
          const double next = inputs[rank].at(i) * factor;
          sum.set(0, op == ReduceOp::prod ? sum.at(0) * next : sum.at(0) + next);
        }
        ASSERT_EQ(sum.at(0), reduced.at(i)) << name(op) << " of " << ranks << " ranks at " << i;
        all_zero &= reduced.at(i) == 0;
      }
      EXPECT_FALSE(all_zero) << name(op) << " of " << ranks << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Floats, Exactness,
                         testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2),
                         [](const auto& tested) { return std::string(name(tested.param)); });

TEST(Values, IntegersOfAllRanksDiffer) {
  const Values values(case_of("all_reduce", 3, DType::i32), 1);
  std::vector<std::int32_t> a(100), b(100);
  values.fill({0, 0, 100}, a.data());
  values.fill({1, 0, 100}, b.data());
  EXPECT_NE(a, b);
  EXPECT_EQ(values.wrong({0, 0, 100}, a.data()), 0);
  EXPECT_GT(values.wrong({1, 0, 100}, a.data()), 90);
}

TEST(Values, WrappedSumsOfBytesAreModulo256) {
  const Values values(case_of("all_reduce", 5, DType::u8), 1);
  std::vector<std::uint8_t> sum(50, 0), input(50);
  for (int rank = 0; rank < 5; ++rank) {
    values.fill({rank, 10, 50}, input.data());
    for (int i = 0; i < 50; ++i) sum[i] = static_cast<std::uint8_t>(sum[i] + input[i]);
  }
  EXPECT_EQ(values.wrong({SourceRange::reduced, 10, 50}, sum.data()), 0);
}

// Writes by hand the results that the ranks would have after the collective.
void perform_by_hand(const Case& what, const Values& values, const Buffers& buffers, int rank) {
  const auto element = static_cast<std::int64_t>(size_of(what.dtype));
  for (int copy = 0; copy < buffers.copies(); ++copy) {
    auto* to = static_cast<std::byte*>(buffers.output(copy));
    for (const SourceRange& each : what.expected(rank)) {
      values.fill(each, to);
      to += each.count * element;
    }
  }
}

TEST(Buffers, RightResultsPassAndEachWrongElementIsCounted) {
  for (const perf::Test& test : all_tests()) {
    for (const bool in_place : {false, true}) {
      if (in_place && !can_be_in_place(test)) continue;
      for (int rank = 0; rank < 5; ++rank) {
        const Case what = case_of(test.name, 5, DType::i32);
        const Values values(what, 1);
        const Buffers buffers(what, rank, in_place, 2, rank % 2 == 0 ? Memory::symmetric : Memory::ordinary);
        buffers.fill(values);
        perform_by_hand(what, values, buffers, rank);
        ASSERT_EQ(buffers.wrong(values), 0) << test.name << " in place " << in_place << " rank " << rank;
        const std::int64_t count = what.output_count(rank);
        if (count == 0) continue;
        auto* const output = static_cast<std::int32_t*>(buffers.output(1));
        output[count - 1] ^= 1;
        EXPECT_EQ(buffers.wrong(values), 1) << test.name;
        output[0] ^= 1 << 20;
        EXPECT_EQ(buffers.wrong(values), count == 1 ? 1 : 2) << test.name;
      }
    }
  }
}

TEST(Buffers, NothingDoneIsWrong) {
  for (const DType dtype : {DType::f32, DType::i8, DType::u64}) {
    const Case what = case_of("all_reduce", 3, dtype);
    const Values values(what, 1);
    const Buffers buffers(what, 0, false, 1, Memory::ordinary);
    buffers.fill(values);
    EXPECT_GT(buffers.wrong(values), what.count * 9 / 10);
  }
}

TEST(Buffers, AWriteBesideTheOutputIsFound) {
  const Case what = case_of("all_gather", 3, DType::f32);
  const Values values(what, 1);
  const Buffers buffers(what, 1, false, 1, Memory::ordinary);
  for (const std::int64_t beside : {std::int64_t{-1}, what.output_count(1)}) {
    buffers.fill(values);
    perform_by_hand(what, values, buffers, 1);
    static_cast<float*>(buffers.output(0))[beside] = 0;
    EXPECT_EQ(buffers.wrong(values), 4);  // bytes of a guard
  }
}

TEST(Buffers, AChangedInputIsFound) {
  const Case what = case_of("reduce", 3, DType::f32);  // the root is rank 2
  const Values values(what, 1);
  for (const bool in_place : {false, true}) {
    const Buffers buffers(what, 0, in_place, 1, Memory::ordinary);
    buffers.fill(values);
    EXPECT_EQ(buffers.wrong(values), 0);
    const_cast<float*>(static_cast<const float*>(buffers.input(0)))[5] += 1;
    EXPECT_EQ(buffers.wrong(values), 1);
  }
}

// ---- where the library quantizes

stretto::Quantization as(stretto::QuantizedFormat format) {
  stretto::Quantization how;
  how.format = format;
  return how;
}

TEST(Approximate, TakesWhatIsWithinTheBoundAndCountsWhatIsBeyond) {
  constexpr std::int64_t count = 300;
  for (const char* test : {"all_reduce", "reduce_scatter", "all_gather"}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul_sum}) {
      const Case what = case_of(test, 3, DType::f32, op);
      const std::vector<Tensor> inputs = Approximate::inputs_of(what, 1, count);
      const Approximate approximate(what, as(stretto::QuantizedFormat::int4), inputs);
      const int source = reduces(what.test->collective) ? SourceRange::reduced : 1;
      std::vector<float> found;
      for (std::int64_t i = 0; i < count; ++i) {
        double exact = 0;
        for (int rank = 0; rank < 3; ++rank) {
          exact += inputs[rank].at(i) * (op == ReduceOp::premul_sum ? Values::factor(rank) : 1);
        }
        if (op == ReduceOp::avg) exact /= 3;
        found.push_back(static_cast<float>(source == 1 ? inputs[1].at(i) : exact));
      }
      Deviation deviation;
      EXPECT_EQ(approximate.compare(source, 0, count, found.data(), deviation), 0) << test << " " << name(op);
      EXPECT_LT(deviation.most, 1e-6);
      EXPECT_EQ(deviation.elements, count);
      found[7] += static_cast<float>(0.9 * approximate.bound());
      EXPECT_EQ(approximate.compare(source, 0, count, found.data(), deviation), 0);
      EXPECT_NEAR(deviation.most, 0.9 * approximate.bound(), 1e-5);
      EXPECT_NEAR(deviation.squares, deviation.most * deviation.most, 1e-5);
      found[7] += static_cast<float>(0.2 * approximate.bound());
      found[9] = NAN;
      EXPECT_EQ(approximate.compare(source, 0, count, found.data(), deviation), 2);
      EXPECT_TRUE(std::isnan(deviation.most)) << "a later error has taken the place of NaN";
      // In int8, most elements at a wrong index are found.
      const Approximate closer(what, as(stretto::QuantizedFormat::int8), inputs);
      EXPECT_GT(closer.compare(source, 1, count - 1, found.data(), deviation), count / 2) << test << " " << name(op);
    }
  }
}

TEST(Cases, BytesAndFactorsAreThoseOfNcclTests) {
  struct {
    const char* test;
    double factor;
  } const expected[] = {{"all_reduce", 1.5}, {"reduce_scatter", .75}, {"all_gather", .75},
                        {"all_to_all", .75}, {"broadcast", 1},        {"reduce", 1},
                        {"gather", .75},     {"scatter", .75},        {"sendrecv", 1}};
  for (const auto& [test, factor] : expected) {
    const Case what = case_of(test, 4, DType::f32, ReduceOp::sum, 1 << 20);
    EXPECT_EQ(what.bytes(), 1 << 20) << test;
    EXPECT_DOUBLE_EQ(what.bus_factor(), factor) << test;
  }
}

TEST(Cases, UnevenSharesAreSomeEmptyAndAllSentIsReceived) {
  for (const char* test : {"all_to_all_v", "all_gather_v", "reduce_scatter_v", "gather_v", "scatter_v"}) {
    for (const int ranks : {1, 2, 3, 5, 9}) {
      const Case what = case_of(test, ranks, DType::f32, ReduceOp::sum, 1 << 16);
      EXPECT_LE(what.bytes(), 1 << 16);
      EXPECT_GT(what.bytes(), 1 << 14);
      EXPECT_EQ(std::count(what.counts.begin(), what.counts.end(), 0) > 0, ranks >= 3 || what.counts.size() == 4) << test;
    }
  }
}

}  // namespace
}  // namespace perf
