#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/quantize/quantize_plain.hpp"
#include "device/element_types.hpp"
#include "device/kernels/tested_kernels.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

using enum QuantizedFormat;
constexpr QuantizedFormat all_formats[] = {int8, int4, fp8, onebit};
constexpr DType all_dtypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float largest_float = std::numeric_limits<float>::max();

// Bytes at any address, between guards.
class Bytes {
 public:
  explicit Bytes(std::int64_t count, std::size_t misalignment = 0)
      : begin_(64 + misalignment), count_(static_cast<std::size_t>(count)), memory_(begin_ + count_ + 64, 0x5a) {}
  std::uint8_t* raw() { return memory_.data() + begin_; }
  const std::uint8_t* raw() const { return memory_.data() + begin_; }
  bool guarded() const {
    const auto untouched = [](std::uint8_t byte) { return byte == 0x5a; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(begin_), untouched) &&
           std::all_of(memory_.end() - 64, memory_.end(), untouched);
  }

 private:
  std::size_t begin_, count_;
  std::vector<std::uint8_t> memory_;
};

enum class Kind { normal, mixed, bits, huge, tiny, denormal, halves, edges };
constexpr Kind finite_kinds[] = {Kind::normal,   Kind::mixed,  Kind::huge, Kind::tiny,
                                 Kind::denormal, Kind::halves, Kind::edges};

// An element near the midpoint of two codes, in a group whose largest element is `largest`: its product with the inverse of
// the scale may be on the wrong side.
float edge(QuantizedFormat format, float largest, std::mt19937& generator) {
  const ScaleRule rule = scale_rule(format, false);
  const float middle = std::floor(static_cast<float>(generator() % 1000) * (rule.range - 1) * 0.001F) + 0.5F;
  float x = middle * rule.scale(largest);
  const float towards = generator() % 2 == 0 ? 0 : infinity;
  for (unsigned step = generator() % 3; step > 0; --step) x = std::nextafter(x, towards);
  return generator() % 2 == 0 ? x : -x;
}

std::vector<float> numbers(std::int64_t count, Kind kind, unsigned seed = 1) {
  std::vector<float> result(static_cast<std::size_t>(count));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::uniform_int_distribution<int> exponent(-140, 120);
  const float largest = 1 + 0.137F * static_cast<float>(seed % 7);
  for (float& x : result) {
    switch (kind) {
      case Kind::normal: x = normal(generator); break;
      case Kind::mixed: x = std::ldexp(normal(generator), exponent(generator) / 10); break;
      case Kind::bits: x = std::bit_cast<float>(static_cast<std::uint32_t>(generator())); break;
      case Kind::huge: x = generator() % 3 == 0 ? largest_float : uniform(generator) * largest_float; break;
      case Kind::tiny: x = uniform(generator) * 0x1p-113F; break;
      case Kind::denormal: x = uniform(generator) * 0x1p-126F; break;
      case Kind::halves: x = std::floor(uniform(generator) * 254) * 0.5F * 1.1F; break;
      case Kind::edges:
        x = (&x - result.data()) % 64 == 0 ? largest : edge(generator() % 2 == 0 ? int8 : int4, largest, generator);
        break;
    }
  }
  return result;
}

// The numbers as elements of a type, at any address.
Bytes elements(const std::vector<float>& values, DType dtype, std::size_t misalignment = 0) {
  Bytes result(static_cast<std::int64_t>(values.size() * size_of(dtype)), misalignment);
  convert(DType::f32, values.data(), dtype, result.raw(), static_cast<std::int64_t>(values.size()));
  return result;
}

// Compares bits, except that any two NaNs are equal.
void expect_same_elements(DType dtype, const Bytes& actual, const Bytes& expected, std::int64_t count) {
  with_float_type(dtype, [&]<class T>(T) {
    for (std::int64_t i = 0; i < count; ++i) {
      T a, e;
      const std::size_t at = static_cast<std::size_t>(i) * sizeof(T);
      std::memcpy(static_cast<void*>(&a), actual.raw() + at, sizeof(T));
      std::memcpy(static_cast<void*>(&e), expected.raw() + at, sizeof(T));
      if (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(e))) continue;
      ASSERT_EQ(std::memcmp(&a, &e, sizeof(T)), 0)
          << "element " << i << " of " << count << " is " << static_cast<float>(a) << ", not " << static_cast<float>(e);
    }
  });
}

float scale_of(QuantizedFormat format, const std::vector<std::uint8_t>& records, std::int64_t element) {
  const std::uint8_t* const record = records.data() + element / group_elements(format) * record_bytes(format);
  std::uint32_t bits = 0;
  std::memcpy(&bits, record, format == int4 ? 2 : 4);
  return std::bit_cast<float>(format == int4 ? bits << 16 : bits);
}

std::vector<std::uint8_t> quantized(QuantizedFormat format, const std::vector<float>& x,
                                    const QuantizeOptions& options = {}) {
  const auto count = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> records(static_cast<std::size_t>(packed_bytes(format, count)));
  quantize(format, DType::f32, x.data(), records.data(), count, options);
  return records;
}
std::vector<float> dequantized(QuantizedFormat format, const std::vector<std::uint8_t>& records, std::size_t count) {
  std::vector<float> out(count);
  dequantize(format, records.data(), DType::f32, out.data(), static_cast<std::int64_t>(count));
  return out;
}
std::vector<float> there_and_back(QuantizedFormat format, const std::vector<float>& x, const QuantizeOptions& options = {}) {
  return dequantized(format, quantized(format, x, options), x.size());
}

// ---- the vector code and the plain code

struct Call {
  QuantizedFormat format;
  DType dtype;
  std::int64_t count;
  Kind kind;
  Rounding rounding;
  bool feedback;
  std::size_t misalignment;
};

// Quantizes what the call says both ways, adds three such vectors both ways, and requantizes the sum both ways.
void expect_equal_to_plain(const Call& call) {
  const std::int64_t bytes = packed_bytes(call.format, call.count);
  std::vector<Bytes> records;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const Bytes x = elements(numbers(call.count, call.kind, seed), call.dtype, call.misalignment * seed);
    std::vector<float> residual = numbers(call.count, Kind::normal, seed + 10);
    std::vector<float> plain_residual = residual;
    QuantizeOptions options{call.rounding, 5, 0xfffffe00U * (seed - 1) + seed, call.feedback ? residual.data() : nullptr};
    Bytes made(bytes, call.misalignment + seed - 1);
    quantize(call.format, call.dtype, x.raw(), made.raw(), call.count, options);
    if (call.feedback) options.residual = plain_residual.data();
    Bytes expected(bytes);
    plain::quantize(call.format, call.dtype, x.raw(), expected.raw(), call.count, options);
    for (std::int64_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(made.raw()[i], expected.raw()[i])
          << "byte " << i % record_bytes(call.format) << " of record " << i / record_bytes(call.format);
    }
    ASSERT_TRUE(made.guarded());
    ASSERT_TRUE(residual.empty() ||
                std::memcmp(residual.data(), plain_residual.data(), residual.size() * sizeof(float)) == 0);
    records.push_back(std::move(made));
  }
  const void* const vectors[] = {records[0].raw(), records[1].raw(), records[2].raw()};
  const auto out_bytes = call.count * static_cast<std::int64_t>(size_of(call.dtype));
  for (const auto& [sources, divisor] : {std::pair{1, 1}, {2, 1}, {3, 3}, {2, 4}}) {
    Bytes sum(out_bytes, call.misalignment);
    dequantize_reduce(call.format, vectors, sources, call.dtype, sum.raw(), call.count, divisor);
    Bytes expected(out_bytes);
    plain::dequantize_reduce(call.format, vectors, sources, call.dtype, expected.raw(), call.count, divisor);
    expect_same_elements(call.dtype, sum, expected, call.count);
    ASSERT_TRUE(sum.guarded());
  }
  for (const QuantizedFormat to : all_formats) {
    SCOPED_TRACE(std::string("to ") + name(to));
    std::vector<float> residual = numbers(call.count, Kind::tiny);
    std::vector<float> plain_residual = residual;
    const bool rounds = to == int8 || to == int4;
    QuantizeOptions options{rounds ? call.rounding : Rounding::nearest_even, 6, 7,
                            call.feedback ? residual.data() : nullptr};
    Bytes made(packed_bytes(to, call.count), call.misalignment);
    requantize(call.format, vectors, 3, to, made.raw(), call.count, 3, options);
    if (call.feedback) options.residual = plain_residual.data();
    Bytes expected(packed_bytes(to, call.count));
    plain::requantize(call.format, vectors, 3, to, expected.raw(), call.count, 3, options);
    ASSERT_EQ(std::memcmp(made.raw(), expected.raw(), static_cast<std::size_t>(packed_bytes(to, call.count))), 0);
    ASSERT_TRUE(made.guarded());
    ASSERT_TRUE(residual.empty() ||
                std::memcmp(residual.data(), plain_residual.data(), residual.size() * sizeof(float)) == 0);
  }
}

void expect_equal_to_plain(const std::vector<std::int64_t>& counts, const std::vector<Kind>& kinds) {
  for (const QuantizedFormat format : all_formats) {
    for (const DType dtype : all_dtypes) {
      for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        if (rounding == Rounding::stochastic && format != int8 && format != int4) continue;
        for (const bool feedback : {false, true}) {
          for (const Kind kind : kinds) {
            for (const std::int64_t count : counts) {
              SCOPED_TRACE(std::string(name(format)) + " of " + std::to_string(count) + " " + name(dtype) + ", kind " +
                           std::to_string(static_cast<int>(kind)) + (feedback ? ", feedback" : "") +
                           (rounding == Rounding::stochastic ? ", stochastic" : ""));
              expect_equal_to_plain({format, dtype, count, kind, rounding, feedback, static_cast<std::size_t>(count % 5)});
              if (testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(Quantize, EqualsThePlainCodeAtEverySize) {
  std::vector<std::int64_t> counts;
  const std::int64_t step = few_cases() ? 21 : calls_are_slow() ? 7 : 1;
  for (std::int64_t count = 0; count <= 1100; count += step * (count < 70 ? 1 : 37)) counts.push_back(count);
  for (const std::int64_t count : {1, 2, 31, 32, 64, 65, 255, 256, 257, 511, 512, 1023, 1024, 1025, 1100, 2048 + 77})
    counts.push_back(count);
  expect_equal_to_plain(counts, {Kind::normal});
}

TEST(Quantize, EqualsThePlainCodeWhateverTheNumbersAre) {
  expect_equal_to_plain(few_cases()        ? std::vector<std::int64_t>{1024 + 65}
                        : calls_are_slow() ? std::vector<std::int64_t>{2 * 1024 + 65}
                                           : std::vector<std::int64_t>{3 * 1024 + 1, 5 * 1024 + 65},
                        {Kind::mixed, Kind::bits, Kind::huge, Kind::tiny, Kind::denormal, Kind::halves, Kind::edges});
}

// Results have the same bits on every processor.
TEST(Quantize, AllInstructionSetsEqualThePlainCode) {
  HOST_ONLY("the GPU has no instruction sets to choose from");
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    expect_equal_to_plain({63, 2 * 1024 + 77}, {Kind::normal, Kind::bits});
    hwy::SetSupportedTargetsForTest(0);
  }
}

// The control: codes in another order give other records.
TEST(Quantize, AnotherOrderOfCodesIsSeen) {
  std::vector<float> x = numbers(64, Kind::normal);
  x[0] = 1;
  x[32] = -1;
  std::vector<float> swapped = x;
  std::swap(swapped[0], swapped[32]);
  for (const QuantizedFormat format : all_formats)
    EXPECT_NE(quantized(format, x), quantized(format, swapped)) << name(format);
}

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
