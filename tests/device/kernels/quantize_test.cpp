#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "device/kernels/quantize_data.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

// ---- the bound

// The largest |x - dequantized x| in units of the scale.
double worst_error(QuantizedFormat format, const std::vector<float>& x, const QuantizeOptions& options = {}) {
  const std::vector<std::uint8_t> records = quantized(format, x, options);
  const std::vector<float> back = dequantized(format, records, x.size());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::abs(static_cast<double>(x[i]) - back[i]);
    worst = std::max(worst, error / scale_of(format, records, static_cast<std::int64_t>(i)));
  }
  return worst;
}

TEST(Quantize, AnElementIsOffByHalfTheScaleAtMost) {
  for (const QuantizedFormat format : {int8, int4}) {
    for (const Kind kind : finite_kinds) {
      SCOPED_TRACE(std::string(name(format)) + " of kind " + std::to_string(static_cast<int>(kind)));
      const std::vector<float> x = numbers(200'000, kind);
      EXPECT_LE(worst_error(format, x), 0.5);
      EXPECT_LT(worst_error(format, x, {.rounding = Rounding::stochastic}), 1);
      const bool small = kind == Kind::denormal;
      if (!small) {
        EXPECT_GT(worst_error(format, x), 0.49);  // the bound is tight
        EXPECT_GT(worst_error(format, x, {.rounding = Rounding::stochastic}), 0.9);
      }
    }
  }
}

// A scale is the group's largest |x| over the largest code, rounded up.
TEST(Quantize, TheScaleIsTheLargestOverTheCodes) {
  for (const auto& [format, codes] : {std::pair{int8, 127.0}, {int4, 7.0}}) {
    const std::vector<float> x = numbers(100'000, Kind::normal);
    const std::vector<std::uint8_t> records = quantized(format, x);
    for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(group_elements(format))) {
      double largest = 0;
      for (std::size_t i = begin; i < std::min(x.size(), begin + static_cast<std::size_t>(group_elements(format))); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      }
      const double scale = scale_of(format, records, static_cast<std::int64_t>(begin));
      EXPECT_GE(scale, largest / codes * (1 - 0x1p-24));
      EXPECT_LE(scale, largest / codes * (1 + (format == int8 ? 0x1p-15 : 0x1p-7)));
    }
  }
}

TEST(Quantize, Fp8IsOffByAnEighthOfAPowerOfTwoAtMost) {
  for (const Kind kind : finite_kinds) {
    const std::vector<float> x = numbers(100'000, kind);
    const std::vector<std::uint8_t> records = quantized(fp8, x);
    const std::vector<float> back = dequantized(fp8, records, x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double scale = scale_of(fp8, records, static_cast<std::int64_t>(i));
      const double bound = std::max(std::abs(x[i]) / 16.0, scale * 0x1p-10) * (1 + 0x1p-20);
      ASSERT_LE(std::abs(static_cast<double>(x[i]) - back[i]), bound) << x[i];
    }
  }
}

TEST(Quantize, NumbersOnTheGridComeBackAsTheyAre) {
  for (const auto& [format, codes] : {std::pair{int8, 127}, {int4, 7}}) {
    for (const float scale : {1.0F, 0.5F, 3.0F, 0x1.8p-100F, 0x1.fcp100F}) {
      std::vector<float> x(2000);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i % 64 == 5 ? -codes : static_cast<int>(i * 31 % (2 * codes + 1)) - codes) * scale;
      }
      EXPECT_EQ(there_and_back(format, x), x) << name(format) << " " << scale;
      x[70] += scale / 4;  // the control
      EXPECT_NE(there_and_back(format, x), x);
    }
  }
}

TEST(Quantize, OnebitKeepsSignsAndTheMean) {
  std::vector<float> x(1024 + 100);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = (i % 3 == 0 ? -1.0F : 1.0F) * static_cast<float>(i % 2 == 0 ? 1 : 3);
  const std::vector<float> back = there_and_back(onebit, x);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], std::copysign(2.0F, x[i]));
  for (const float huge : there_and_back(onebit, std::vector<float>(2000, largest_float))) {
    ASSERT_NEAR(huge / largest_float, 1, 1e-6);
  }
  EXPECT_EQ(there_and_back(onebit, std::vector<float>(2000, 0)), std::vector<float>(2000, 0));
}

TEST(Quantize, TheShortLastGroupHoldsZeros) {
  for (const auto& [format, largest] : {std::pair{int8, 127.0F}, {int4, 7.0F}, {fp8, 448.0F}, {onebit, 3.0F}}) {
    const std::vector<std::uint8_t> records = quantized(format, {largest});
    const std::vector<float> back = dequantized(format, records, static_cast<std::size_t>(group_elements(format)));
    EXPECT_EQ(back[0], largest) << name(format);
    if (format == onebit) continue;  // onebit has no code for zero
    for (std::size_t i = 1; i < back.size(); ++i) ASSERT_EQ(back[i], 0) << name(format);
  }
}

// ---- infinity and NaN

TEST(Quantize, NanAndInfinityArriveAndTheirNeighboursStayClose) {
  for (const QuantizedFormat format : {int8, int4, fp8}) {
    for (const Kind kind : finite_kinds) {
      SCOPED_TRACE(std::string(name(format)) + " of kind " + std::to_string(static_cast<int>(kind)));
      std::vector<float> x = numbers(4 * 256, kind);
      const std::vector<float> pure = x;
      x[3] = nan;
      x[40] = infinity;
      x[63] = -infinity;
      x[600] = infinity;
      for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        if (format == fp8 && rounding == Rounding::stochastic) continue;
        const std::vector<std::uint8_t> records = quantized(format, x, {.rounding = rounding});
        const std::vector<float> back = dequantized(format, records, x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double scale = std::abs(scale_of(format, records, static_cast<std::int64_t>(i)));
          if (std::isnan(x[i])) {
            ASSERT_TRUE(std::isnan(back[i]));
          } else if (std::isinf(x[i])) {
            ASSERT_EQ(back[i], x[i]);
          } else if (format == fp8) {
            const bool special = scale_of(format, records, static_cast<std::int64_t>(i)) < 0;
            const double smallest = scale * (special ? 0x1p-17 : 0x1p-10);
            ASSERT_LE(std::abs(static_cast<double>(x[i]) - back[i]),
                      std::max(std::abs(x[i]) / 8.0, smallest) * (1 + 0x1p-20));
          } else {
            ASSERT_LE(std::abs(static_cast<double>(x[i]) - back[i]), scale * (rounding == Rounding::stochastic ? 1 : 0.5));
          }
        }
        EXPECT_LT(scale_of(format, records, 3), 0);
        EXPECT_GT(scale_of(format, records, 256), 0);
        // Groups without them are not affected.
        const std::vector<float> pure_back = there_and_back(format, pure, {.rounding = rounding});
        EXPECT_TRUE(std::equal(back.begin() + 256, back.begin() + 512, pure_back.begin() + 256));
      }
    }
    const std::vector<float> nothing_else{nan, infinity, -infinity};
    const std::vector<float> back = there_and_back(format, nothing_else);
    EXPECT_TRUE(std::isnan(back[0]));
    EXPECT_EQ(back[1], infinity);
    EXPECT_EQ(back[2], -infinity);
  }
}

TEST(Quantize, InOnebitTheyMakeTheirGroupNan) {
  for (const float special : {nan, infinity, -infinity}) {
    std::vector<float> x(2048, 1);
    x[77] = special;
    const std::vector<float> back = there_and_back(onebit, x);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(std::isnan(back[i]), i < 1024);
  }
}

// ---- stochastic rounding

TEST(Quantize, StochasticRoundingIsRightOnAverage) {
  const int seeds = calls_are_slow() ? 1000 : 4000;
  for (const QuantizedFormat format : {int8, int4}) {
    std::vector<float> x = numbers(64, Kind::normal, 3);
    x[0] = 7 * 0.5F * (format == int8 ? 127.0F / 7 : 1);  // the scale is 0.5
    std::vector<double> sums(x.size());
    for (int seed = 0; seed < seeds; ++seed) {
      const std::vector<float> back = there_and_back(format, x, {Rounding::stochastic, static_cast<std::uint64_t>(seed)});
      for (std::size_t i = 0; i < x.size(); ++i) sums[i] += back[i];
    }
    int biased = 0;
    const std::vector<float> nearest = there_and_back(format, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Five standard deviations of the mean: each draw's standard deviation is at most half the scale.
      const double allowed = 5 * 0.25 / std::sqrt(seeds);
      EXPECT_NEAR(sums[i] / seeds, x[i], allowed) << i;
      biased += std::abs(nearest[i] - x[i]) > allowed ? 1 : 0;
    }
    EXPECT_GT(biased, 32) << "the control: rounding to nearest would be told from it";
  }
}

// The random number of an element depends on the seed and on the element's number only: a cut vector gives the same codes,
// and neighbouring elements and seeds give different ones.
TEST(Quantize, StochasticRoundingGoesByTheElementsNumber) {
  for (const QuantizedFormat format : {int8, int4}) {
    const std::vector<float> x = numbers(2048, Kind::normal);
    const std::vector<std::uint8_t> whole = quantized(format, x, {Rounding::stochastic, 9, 0xffffff00U});
    const std::vector<std::uint8_t> part =
        quantized(format, std::vector<float>(x.begin() + 1024, x.end()), {Rounding::stochastic, 9, 0xffffff00U + 1024UL});
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.end() - static_cast<std::ptrdiff_t>(part.size())));
    EXPECT_NE(whole, quantized(format, x, {Rounding::stochastic, 10, 0xffffff00U}));
    EXPECT_NE(whole, quantized(format, x, {Rounding::stochastic, 9, 0}));
    std::vector<float> same(2048, 0.5F);
    same[0] = format == int8 ? 127 : 7;
    for (std::size_t i = 0; i < same.size(); i += 64) same[i] = same[0];
    const std::vector<float> back = there_and_back(format, same, {Rounding::stochastic, 1});
    const auto ups = static_cast<int>(std::count(back.begin(), back.end(), 1.0F));
    EXPECT_NEAR(ups, 1008, 5 * 16);  // five standard deviations
    int alike = 0;
    for (std::size_t i = 1; i < back.size(); ++i) alike += back[i] == back[i - 1] ? 1 : 0;
    EXPECT_NEAR(alike, 992, 6 * 23);
  }
}

// ---- error feedback

TEST(Quantize, TheResidualIsWhatWasLeftOut) {
  for (const QuantizedFormat format : all_formats) {
    std::vector<float> x = numbers(3000, Kind::normal);
    std::vector<float> residual = numbers(3000, Kind::normal, 2);
    std::vector<float> wanted(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) wanted[i] = x[i] + residual[i];
    const std::vector<float> back = there_and_back(format, x, {.residual = residual.data()});
    EXPECT_EQ(back, there_and_back(format, wanted)) << name(format);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(residual[i], wanted[i] - back[i]) << name(format);
    // Over many rounds, the sum of what arrives is the sum of what was sent, except for one residual.
    double sent = 0, arrived = 0;
    residual.assign(x.size(), 0);
    for (int round = 0; round < 50; ++round) {
      arrived += there_and_back(format, x, {.residual = residual.data()})[7];
      sent += x[7];
    }
    EXPECT_NEAR(arrived + residual[7], sent, 1e-3);
    x[7] = nan;
    x[2000] = infinity;
    quantized(format, x, {.residual = residual.data()});
    for (const float left : residual) ASSERT_TRUE(std::isfinite(left));
    EXPECT_EQ(residual[7], 0);
    EXPECT_EQ(residual[2000], 0);
  }
}

// ---- sums

TEST(Quantize, SumsAreExactOnTheGridAndDividedOnce) {
  for (const QuantizedFormat format : {int8, int4}) {
    std::vector<std::vector<std::uint8_t>> records;
    std::vector<const void*> vectors;
    std::vector<float> sum(700);
    for (int vector = 0; vector < 5; ++vector) {
      std::vector<float> x(sum.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i % 64 == 0 ? 7 : static_cast<int>((i + static_cast<std::size_t>(vector)) * 5 % 15) - 7);
        if (format == int8 && i % 64 == 0) x[i] = 127;
        sum[i] += x[i];
      }
      records.push_back(quantized(format, x));
    }
    for (const auto& each : records) vectors.push_back(each.data());
    const auto count = static_cast<std::int64_t>(sum.size());
    for (const std::int64_t divisor : {1, 3, 4}) {
      std::vector<float> out(sum.size());
      dequantize_reduce(format, vectors.data(), 5, DType::f32, out.data(), count, divisor);
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(out[i], sum[i] / static_cast<float>(divisor));
    }
  }
}

TEST(Quantize, WhatDoesNotFitIsRefusedInASentence) {
  float x[4] = {};
  std::uint8_t records[4096] = {};
  const void* const vectors[] = {records};
  expect_refusal([&] { quantize(none, DType::f32, x, records, 4); }, "0 is not the number");
  expect_refusal([&] { quantize(static_cast<QuantizedFormat>(5), DType::f32, x, records, 4); }, "5");
  expect_refusal([&] { quantize(int8, DType::f64, x, records, 4); }, "f64");
  expect_refusal([&] { quantize(fp8, DType::f32, x, records, 4, {.rounding = Rounding::stochastic}); }, "fp8");
  expect_refusal([&] { quantize(onebit, DType::f32, x, records, 4, {.rounding = Rounding::stochastic}); }, "onebit");
  expect_refusal([&] { dequantize(int8, records, DType::i32, x, 4); }, "i32");
  expect_refusal([&] { dequantize_reduce(int8, vectors, 0, DType::f32, x, 4); }, "0 vectors");
  expect_refusal([&] { dequantize_reduce(int8, vectors, 1, DType::f32, x, 4, 0); }, "divided by 0");
  expect_refusal([&] { requantize(int8, vectors, 1, none, records, 4); }, "0 is not the number");
}

}  // namespace
}  // namespace stretto::kernels::tested
