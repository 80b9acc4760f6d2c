#include "stretto/dtype.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "stretto/error.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(F16, EveryValueSurvivesARoundTrip) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    f16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const float wide = static_cast<float>(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(f16(wide))));
    } else {
      EXPECT_EQ(f16(wide).bits, half.bits) << wide;
    }
  }
}

// Between two neighbours the nearer one wins, at the middle the even one.
TEST(F16, RoundsToNearestEven) {
  for (unsigned bits = 0; bits < 0x7bff; ++bits) {
    f16 low;
    f16 high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    const float a = static_cast<float>(low);
    const float b = static_cast<float>(high);
    const float middle = (a + b) / 2;
    EXPECT_EQ(f16(middle).bits, (bits & 1U) == 0 ? low.bits : high.bits);
    EXPECT_EQ(f16(std::nextafter(middle, a)).bits, low.bits);
    EXPECT_EQ(f16(std::nextafter(middle, b)).bits, high.bits);
  }
  EXPECT_EQ(f16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(f16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(f16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  for (unsigned bits = 0; bits < 0x7f7f; ++bits) {
    bf16 low;
    low.bits = static_cast<std::uint16_t>(bits);
    const float a = static_cast<float>(low);
    const float middle = std::bit_cast<float>((bits << 16) + 0x8000U);
    EXPECT_EQ(bf16(a).bits, bits);
    EXPECT_EQ(bf16(middle).bits, bits + (bits & 1U));
    EXPECT_EQ(bf16(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::numeric_limits<float>::quiet_NaN()))));
}

// The same formats told a second time, number by number: what 8 bits mean, and the nearest of all such numbers to a float.
struct EightBits {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  // The value of a magnitude's bits; what lies beyond the largest number continues the scale.
  double value(unsigned magnitude) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const auto mantissa = static_cast<double>(magnitude & ((1U << mantissa_bits) - 1));
    const double one = 1 << mantissa_bits;
    return exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : std::ldexp(one + mantissa, exponent - bias - mantissa_bits);
  }
  unsigned first_special() const { return has_infinity ? 0x7cU : 0x7fU; }
  unsigned nearest(double magnitude) const {
    magnitude = std::min(magnitude, value(first_special()));  // where distances to huge numbers are still exact
    unsigned best = 0;
    for (unsigned bits = 1; bits <= first_special(); ++bits) {
      const double distance = std::abs(value(bits) - magnitude);
      const double least = std::abs(value(best) - magnitude);
      if (distance < least || (distance == least && bits % 2 == 0)) best = bits;
    }
    return best;
  }
};
constexpr EightBits e4m3{4, 3, false};
constexpr EightBits e5m2{5, 2, true};

template <class T>
void expect_that_every_value_is_kept(const EightBits& format) {
  for (unsigned bits = 0; bits < 0x100; ++bits) {
    T narrow;
    narrow.bits = static_cast<std::uint8_t>(bits);
    const auto wide = static_cast<float>(narrow);
    const unsigned magnitude = bits & 0x7fU;
    EXPECT_EQ(std::signbit(wide), bits >= 0x80) << bits;
    if (magnitude < format.first_special()) {
      EXPECT_EQ(std::abs(wide), format.value(magnitude)) << bits;
      EXPECT_EQ(T(wide).bits, bits);
    } else if (format.has_infinity && magnitude == format.first_special()) {
      EXPECT_TRUE(std::isinf(wide));
      EXPECT_EQ(T(wide).bits, bits);
    } else {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(T(wide))));
    }
  }
}

// Floats of every sign, exponent and upper mantissa, each exactly there and just beside; the ties are among them.
template <class T>
void expect_that_the_nearest_is_chosen(const EightBits& format) {
  for (unsigned upper = 0; upper < 0x7f80; ++upper) {
    const bool beyond = upper < 0x3600 || upper > 0x4800;  // far below the smallest number, or above the largest
    if (beyond && upper % 256 != 0) continue;
    for (const unsigned lower : {0U, 1U, 0x8000U, 0xffffU}) {
      const auto positive = std::bit_cast<float>(upper << 16 | lower);
      const unsigned expected = format.nearest(positive);
      ASSERT_EQ(T(positive).bits, expected) << positive;
      ASSERT_EQ(T(-positive).bits, expected | 0x80U) << -positive;
    }
  }
}

TEST(F8e4m3, EveryValueSurvivesARoundTrip) { expect_that_every_value_is_kept<f8e4m3>(e4m3); }
TEST(F8e5m2, EveryValueSurvivesARoundTrip) { expect_that_every_value_is_kept<f8e5m2>(e5m2); }
TEST(F8e4m3, RoundsToNearestEven) { expect_that_the_nearest_is_chosen<f8e4m3>(e4m3); }
TEST(F8e5m2, RoundsToNearestEven) { expect_that_the_nearest_is_chosen<f8e5m2>(e5m2); }

TEST(F8e4m3, HasTheOcpEncoding) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f8e4m3(1.0F).bits, 0x38);
  EXPECT_EQ(f8e4m3(448.0F).bits, 0x7e);
  EXPECT_EQ(f8e4m3(464.0F).bits, 0x7e);
  EXPECT_EQ(f8e4m3(std::nextafter(464.0F, infinity)).bits, 0x7f);  // NaN
  EXPECT_EQ(f8e4m3(-infinity).bits, 0xff);
  EXPECT_EQ(f8e4m3(0x1p-9F).bits, 0x01);
  EXPECT_EQ(f8e4m3(0x1p-10F).bits, 0x00);
  EXPECT_EQ(f8e4m3(0x3p-10F).bits, 0x02);
  EXPECT_EQ(f8e4m3(-0.0F).bits, 0x80);
  EXPECT_EQ(f8e4m3(std::numeric_limits<float>::quiet_NaN()).bits, 0x7f);
}

TEST(F8e5m2, HasTheOcpEncoding) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f8e5m2(1.0F).bits, 0x3c);
  EXPECT_EQ(f8e5m2(57344.0F).bits, 0x7b);
  EXPECT_EQ(f8e5m2(std::nextafter(61440.0F, 0.0F)).bits, 0x7b);
  EXPECT_EQ(f8e5m2(61440.0F).bits, 0x7c);
  EXPECT_EQ(f8e5m2(-infinity).bits, 0xfc);
  EXPECT_EQ(f8e5m2(0x1p-16F).bits, 0x01);
  EXPECT_EQ(f8e5m2(0x1p-17F).bits, 0x00);
  EXPECT_EQ(f8e5m2(0x3p-17F).bits, 0x02);
  // Once: by way of f16 this would become the middle, 1.125, and round down.
  EXPECT_EQ(f8e5m2(0x1.2001p0F).bits, 0x3d);
  EXPECT_TRUE(std::isnan(static_cast<float>(f8e5m2(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(DTypes, OfCppTypesHaveTheirSize) {
  const auto fits = []<class T>(T) { return size_of(dtype_of<T>) == sizeof(T); };
  EXPECT_TRUE(fits(double{}) && fits(float{}) && fits(bf16{}) && fits(f16{}) && fits(f8e4m3{}) && fits(f8e5m2{}));
  EXPECT_TRUE(fits(std::int8_t{}) && fits(std::uint8_t{}) && fits(std::int32_t{}) && fits(std::uint32_t{}) &&
              fits(std::int64_t{}) && fits(std::uint64_t{}));
}

TEST(DTypeNames, AreReadBackAndRefusedByName) {
  for (int number = 0; number < 12; ++number) {
    const auto dtype = static_cast<DType>(number);
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
    EXPECT_EQ(dtype_from_name(training_name(dtype)), dtype);
  }
  expect_refusal([] { dtype_from_name("fp12"); }, "fp12");
}

}  // namespace
}  // namespace stretto
