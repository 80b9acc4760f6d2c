#include <gtest/gtest.h>

#include <limits>
#include <type_traits>
#include <vector>

#include "device/kernels/elements.hpp"
#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"

namespace stretto::kernels::tested {
namespace {

TEST(Divide, EqualsScalarArithmetic) {
  HOST_ONLY("a GPU divides with the sum");
  for_each_type([]<class T>(T) {
    for (const std::int64_t size : kernel_sizes) {
      for (const std::int64_t divisor : {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, std::int64_t{128},
                                         std::int64_t{0x80000000}, std::int64_t{1} << 40}) {
        const Elements<T> x = random_elements<T>(size, 5, 1);
        Elements<T> quotient = x;
        divide(dtype_of<T>, quotient.raw(), size, divisor);
        expect_same(quotient, reduced(ReduceOp::sum, std::vector{x}, divisor));
        quotient.expect_guards();
      }
    }
  });
}

// Quotients just below the next integer, and quotients of the smallest and largest numbers.
TEST(Divide, TruncatesIntegersTowardsZero) {
  HOST_ONLY("a GPU divides with the sum");
  for_each_type([]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      const T most = std::numeric_limits<T>::max();
      const T least = std::numeric_limits<T>::lowest();
      for (const std::int64_t divisor :
           {std::int64_t{2}, std::int64_t{3}, std::int64_t{127}, static_cast<std::int64_t>(most / 2)}) {
        Elements<T> x(5);
        x.set(0, most);
        x.set(1, least);
        x.set(2, static_cast<T>(most -
                                static_cast<T>(static_cast<std::uint64_t>(most) % static_cast<std::uint64_t>(divisor)) - 1));
        x.set(3, static_cast<T>(7));
        x.set(4, static_cast<T>(-7));
        const Elements<T> expected = reduced(ReduceOp::sum, std::vector{x}, divisor);
        divide(dtype_of<T>, x.raw(), 5, divisor);
        expect_same(x, expected);
      }
    }
  });
  std::int32_t values[] = {7, -7};
  divide(DType::i32, values, 2, 2);
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], -3);
}

TEST(Multiply, EqualsScalarArithmetic) {
  for_each_type([]<class T>(T) {
    for (const std::int64_t size : kernel_sizes) {
      for (const double factor : {0.0, 1.0, 3.0, 100.0}) {
        const Elements<T> x = random_elements<T>(size, 6, 3);
        Elements<T> expected(size);
        for (std::int64_t i = 0; i < size; ++i) {
          const auto by = static_cast<Computed<T>>(factor);
          expected.set(i, static_cast<T>(combined<T>(ReduceOp::prod, static_cast<Computed<T>>(x[i]), by)));
        }
        Elements<T> out(size, 1);
        multiply(dtype_of<T>, x.raw(), out.raw(), size, factor);
        expect_same(out, expected);
        out.expect_guards();
        Elements<T> in_place = x;
        multiply(dtype_of<T>, in_place.raw(), in_place.raw(), size, factor);
        expect_same(in_place, expected);
      }
    }
  });
}

TEST(Multiply, RoundsTheFactorToAnIntegerThatFits) {
  std::int8_t x = 50;
  multiply(DType::i8, &x, &x, 1, -1.75);
  EXPECT_EQ(x, -100);
  EXPECT_THROW(multiply(DType::i8, &x, &x, 1, 128), Error);
  std::uint64_t y = 3;
  multiply(DType::u64, &y, &y, 1, 0x1p62);
  EXPECT_EQ(y, std::uint64_t{3} << 62);
  EXPECT_THROW(multiply(DType::u64, &y, &y, 1, -1), Error);
  EXPECT_THROW(multiply(DType::u64, &y, &y, 1, 0x1p64), Error);
  EXPECT_THROW(multiply(DType::i32, &y, &y, 1, std::numeric_limits<double>::quiet_NaN()), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
