#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr DType float_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2};
constexpr DType narrow_types[] = {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2};

// The expected result, computed with the scalar types.
Tensor sum_of(const Tensor& a, const Tensor& b) {
  Tensor result(a.shape(), a.dtype());
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const bool wide = a.dtype() == DType::f64;
    result.set(i, wide ? a.at(i) + b.at(i) : static_cast<float>(a.at(i)) + static_cast<float>(b.at(i)));
  }
  return result;
}

// Compares bits, except that any two NaNs are equal.
void expect_same(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(actual.dtype(), expected.dtype());
  for (std::int64_t i = 0; i < actual.size(); ++i) {
    const double a = actual.at(i);
    const double e = expected.at(i);
    if (std::isnan(e)) {
      ASSERT_TRUE(std::isnan(a)) << "element " << i << " is " << a;
    } else {
      ASSERT_EQ(a, e) << "element " << i;
      ASSERT_EQ(std::signbit(a), std::signbit(e)) << "element " << i;
    }
  }
}

// Every bit pattern of a narrow type.
Tensor all_patterns(DType dtype) {
  const unsigned width = static_cast<unsigned>(size_of(dtype));
  Tensor result({1 << 8 * width}, dtype);
  for (unsigned bits = 0; bits < 1U << 8 * width; ++bits)
    std::memcpy(static_cast<std::byte*>(result.raw()) + bits * width, &bits, width);  // the low bytes come first
  return result;
}

// f32 of all magnitudes, and those at which rounding to a narrow type changes direction or kind.
Tensor delicate_floats() {
  std::vector<double> numbers;
  for (const DType dtype : narrow_types) {
    const Tensor patterns = all_patterns(dtype);
    for (std::int64_t i = 0; i < patterns.size(); i += size_of(dtype) == 1 ? 1 : 3) {
      const auto low = static_cast<float>(patterns.at(i));
      const auto high = static_cast<float>(patterns.at(std::min<std::int64_t>(i + 1, patterns.size() - 1)));
      const float middle = low / 2 + high / 2;
      for (const float number : {middle, std::nextafter(middle, low), std::nextafter(middle, high)})
        numbers.push_back(number);
    }
  }
  std::mt19937 generator(7);
  for (int i = 0; i < 100000; ++i) numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(generator())));
  for (const double special : {464.0, 0x1.d00002p8, 61439.0, 61440.0, 65519.0, 65520.0, 0x1p-25, 0x1.000002p-25, 0x1p-17,
                               0x1p-14, 0x1p-10, 0x1.ffffffp127})
    numbers.push_back(special);
  return tensor_of(numbers, DType::f32);
}

Tensor converted(const Tensor& from, DType dtype) {
  Tensor result(from.shape(), dtype);
  for (std::int64_t i = 0; i < from.size(); ++i) result.set(i, from.at(i));
  return result;
}

TEST(Convert, EveryPatternOfANarrowTypeKeepsItsValue) {
  for (const DType from : narrow_types) {
    const Tensor patterns = all_patterns(from);
    for (const DType to : float_types) {
      SCOPED_TRACE(std::string(name(from)) + " to " + name(to));
      const Tensor out(patterns.shape(), to);
      convert(patterns, out);
      expect_same(out, converted(patterns, to));
    }
  }
}

TEST(Convert, RoundsLikeTheScalarTypes) {
  const Tensor floats = delicate_floats();
  Tensor doubles({floats.size()}, DType::f64);
  convert(floats, doubles);
  expect_same(doubles, converted(floats, DType::f64));
  for (const Tensor& from : {floats, doubles, random_tensor({4999}, DType::f64, 3, 1e5)}) {
    for (const DType to : float_types) {
      SCOPED_TRACE(std::string(name(from.dtype())) + " to " + name(to));
      const Tensor out(from.shape(), to);
      convert(from, out);
      expect_same(out, converted(from, to));
    }
  }
}

TEST(Convert, DoublesBeyondF32BecomeInfinite) {
  const Tensor out({2}, DType::f32);
  convert(tensor_of({1e300, -std::numeric_limits<double>::infinity()}, DType::f64), out);
  EXPECT_EQ(out.at(0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(out.at(1), -std::numeric_limits<double>::infinity());
}

TEST(Convert, WorksAtEverySizeAndOffset) {
  for (const DType from : float_types) {
    for (const DType to : float_types) {
      for (const std::int64_t size : kernel_sizes) {
        for (const std::int64_t offset : kernel_offsets) {
          const Tensor x = random_tensor({size + offset}, from).view(offset, {size});
          const Tensor whole = Tensor::zeros({size + 2}, to);
          convert(x, whole.view(1, {size}));
          expect_same(whole.view(1, {size}), converted(x, to));
          EXPECT_EQ(whole.at(0), 0);
          EXPECT_EQ(whole.at(size + 1), 0);
        }
      }
    }
  }
}

TEST(Convert, TakesAnyAddress) {
  const Tensor floats = random_tensor({1001}, DType::f32, 1, 100);
  for (const DType from : float_types) {
    for (const DType to : float_types) {
      SCOPED_TRACE(std::string(name(from)) + " to " + name(to));
      const Tensor x = converted(floats, from);
      std::vector<std::byte> moved(x.bytes() + 1);
      std::memcpy(moved.data() + 1, x.raw(), x.bytes());
      std::vector<std::byte> result(static_cast<std::size_t>(x.size()) * size_of(to) + 3, std::byte{0x5a});
      convert(from, moved.data() + 1, to, result.data() + 1, x.size());
      const Tensor out(x.shape(), to);
      std::memcpy(out.raw(), result.data() + 1, out.bytes());
      expect_same(out, converted(x, to));
      EXPECT_EQ(result.front(), std::byte{0x5a});
      EXPECT_EQ(result.end()[-1], std::byte{0x5a});
      EXPECT_EQ(result.end()[-2], std::byte{0x5a});
    }
  }
}

// More elements than all threads of a GPU take in one turn.
TEST(Convert, TakesMillionsOfElements) {
  const Tensor x({10'000'003}, DType::f32);
  for (std::int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i * 7 % 1'000'003) * 0.37F;
  const Tensor out(x.shape(), DType::bf16);
  convert(x, out);
  for (std::int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(out.data<bf16>()[i], bf16(x.data<float>()[i])) << i;
}

// Element-wise results have the same bits on every processor.
TEST(Convert, AllInstructionSetsGiveTheSameBits) {
  HOST_ONLY("the GPU has no instruction sets to choose from");
  const Tensor floats = delicate_floats();
  const auto results = [&] {
    std::vector<Tensor> all;
    for (const DType from : float_types) {
      const Tensor a(floats.shape(), from);
      convert(floats, a);
      all.push_back(a);
      for (const DType to : float_types) {
        all.emplace_back(floats.shape(), to);
        convert(a, all.back());
      }
    }
    return all;
  };
  const std::vector<Tensor> expected = results();
  on_each_instruction_set([&] {
    const std::vector<Tensor> actual = results();
    for (std::size_t i = 0; i < expected.size(); ++i) expect_same(actual[i], expected[i]);
  });
}

TEST(ElementWise, AddsAndScales) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t size : kernel_sizes) {
      const Tensor a = random_tensor({size}, dtype, 1);
      const Tensor b = random_tensor({size}, dtype, 2);
      const Tensor out({size}, dtype);
      add(a, b, out);
      expect_same(out, sum_of(a, b));
      const Tensor scaled = a.clone();
      scale(scaled, 0.3);
      const Tensor factor = Tensor({size}, DType::f64);
      for (std::int64_t i = 0; i < size; ++i) {
        const double product = dtype == DType::f64 ? a.at(i) * 0.3 : static_cast<float>(a.at(i)) * 0.3F;
        factor.set(i, product);
      }
      expect_same(scaled, converted(factor, dtype));
    }
  }
}

TEST(ElementWise, WhatIsTooLargeForF16BecomesInfinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = tensor_of({65504, -65504, 32752, infinity, std::numeric_limits<double>::quiet_NaN()}, DType::f16);
  const Tensor sum({5}, DType::f16);
  add(x, x, sum);
  const Tensor doubled = x.clone();
  scale(doubled, 2);
  for (const Tensor& result : {sum, doubled}) {
    EXPECT_EQ(values(result.view(0, {4})), (std::vector<double>{infinity, -infinity, 65504, infinity}));
    EXPECT_TRUE(std::isnan(result.at(4)));
  }
}

TEST(ElementWise, AddsABiasToEveryRow) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 17, 65}) {
      const Tensor x = random_tensor({3, columns}, dtype, 1);
      const Tensor bias = random_tensor({columns}, dtype, 2);
      const Tensor sum = x.clone();
      add_bias(sum, bias);
      for (std::int64_t row = 0; row < 3; ++row) {
        expect_same(sum.view(row * columns, {columns}), sum_of(x.view(row * columns, {columns}), bias));
      }
    }
  }
}

TEST(Sums, OfSquaresOfSmallIntegersAreExact) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t size : kernel_sizes) {
      const Tensor x = integer_tensor({size + 1}, dtype).view(1, {size});
      double squares = 0;
      for (const double value : values(x)) squares += value * value;
      EXPECT_EQ(sum_of_squares(x), squares) << size << " " << name(dtype);
    }
  }
}

// Sums in 16 bits are rounded once, after all rows.
TEST(Sums, OfColumnsOfSmallIntegersAreExact) {
  for (const auto& [dtype, gradient] : gradient_types) {
    for (const std::int64_t rows : {0, 1, 5, 8, 19, 400}) {
      for (const std::int64_t columns : {1, 16, 17, 65}) {
        const Tensor x = integer_tensor({rows, columns}, dtype);
        const Tensor sums = integer_tensor({columns}, gradient, 2);
        std::vector<double> expected = values(sums);
        for (std::int64_t i = 0; i < x.size(); ++i) expected[static_cast<std::size_t>(i % columns)] += x.at(i);
        add_column_sums(x, sums);
        EXPECT_EQ(values(sums), values(tensor_of(expected, gradient)))
            << rows << " x " << columns << " " << name(dtype) << " into " << name(gradient);
      }
    }
  }
}

TEST(Sums, AreInfiniteInF16OnlyWhereTheirResultIsTooLarge) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = tensor_of({60000, 60000, -60000, 60000, -60000, -60000}, DType::f16);
  const Tensor sums = tensor_of({1000, 1000, -1000}, DType::f16);
  add_column_sums(x.reshaped({2, 3}), sums);
  EXPECT_EQ(values(sums), (std::vector<double>{infinity, 1000, -infinity}));
}

TEST(Sums, OfSquaresOfManyTensorsAreEachOnes) {
  std::vector<Tensor> xs;
  std::vector<double> expected;
  for (const std::int64_t size : {1, 0, 100003, 17, 0, 4096}) {
    xs.push_back(random_tensor({size + 3}, DType::f32, static_cast<unsigned>(size)).view(3, {size}));
    expected.push_back(sum_of_squares(xs.back()));
  }
  EXPECT_EQ(sums_of_squares(xs), expected);
  EXPECT_EQ(sums_of_squares({}), std::vector<double>());
}

TEST(Sums, OfSquaresAreKeptInF64) {
  const Tensor x = random_tensor({100003}, DType::f32);
  double expected = 0;
  for (const double value : values(x)) expected += value * value;
  EXPECT_NEAR(sum_of_squares(x), expected, 1e-10 * expected);
}

TEST(ElementWise, CopiesColumnsAndLeavesTheOthers) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    Tensor from({5, 7}, dtype), out({5, 4}, dtype);
    for (std::int64_t i = 0; i < from.size(); ++i) from.set(i, static_cast<double>(i));
    for (std::int64_t i = 0; i < out.size(); ++i) out.set(i, 100);
    copy_columns(from, 2, out, 1, 3);
    copy_columns(from, 7, out, 4, 0);
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_EQ(out.at(row * 4), 100);
      for (std::int64_t column = 0; column < 3; ++column)
        EXPECT_EQ(out.at(row * 4 + 1 + column), from.at(row * 7 + 2 + column));
    }
    EXPECT_THROW(copy_columns(from, 5, out, 0, 3), Error);
    EXPECT_THROW(copy_columns(from, 0, out, 2, 3), Error);
    EXPECT_THROW(copy_columns(from, 0, Tensor({4, 4}, dtype), 0, 3), Error);
  }
}

TEST(ElementWise, ArgumentsThatDoNotFitAreNamed) {
  const Tensor three({3}, DType::f32);
  const Tensor four({4}, DType::f32);
  const Tensor half({3}, DType::f16);
  const Tensor eight_bits({3}, DType::f8e4m3);
  expect_refusal([&] { add(three, four, three); }, "[4]");
  EXPECT_THROW(convert(three, Tensor({2}, DType::bf16)), Error);
  EXPECT_THROW(convert(Tensor({3}, DType::i32), three), Error);
  EXPECT_THROW(convert(three, Tensor({3}, DType::u8)), Error);
  EXPECT_THROW(add(three, half, three), Error);
  EXPECT_THROW(scale(eight_bits, 2), Error);
  EXPECT_THROW(add_bias(Tensor({2, 4}, DType::f32), three), Error);
  EXPECT_THROW(add_column_sums(Tensor({2, 3}, DType::bf16), half), Error);
}

}  // namespace
}  // namespace stretto::kernels::tested
