#include "stretto/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "stretto/error.hpp"

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

TEST(DTypeNames, AreReadBackAndRefusedByName) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
  try {
    dtype_from_name("fp12");
    FAIL() << "fp12 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("fp12"), std::string::npos);
  }
}

}  // namespace
}  // namespace stretto
