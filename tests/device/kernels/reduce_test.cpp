#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "device/element_types.hpp"
#include "device/kernels/kernel_data.hpp"
#include "device/kernels/tested_kernels.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr DType all_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8,     DType::u8,
                               DType::i32, DType::u32, DType::i64,  DType::u64, DType::f8e4m3, DType::f8e5m2};
constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min,
                                ReduceOp::max, ReduceOp::avg,  ReduceOp::premul_sum};

// Runs a test for every element type, with a value of it.
template <class Test>
void for_each_type(Test test) {
  for (const DType dtype : all_types) {
    SCOPED_TRACE(name(dtype));
    with_element_type(dtype, test);
    if (testing::Test::HasFatalFailure()) return;
  }
}

template <class T>
constexpr bool is_float = !std::is_integral_v<T>;

// The type in which the scalar reference computes an element.
template <class T>
using Computed = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

// Elements at any address, between guards.
template <class T>
class Elements {
 public:
  explicit Elements(std::int64_t count, std::size_t misalignment = 0)
      : begin_(guard + misalignment),
        count_(count),
        memory_(begin_ + static_cast<std::size_t>(count) * sizeof(T) + guard, std::byte{0x5a}) {}

  void* raw() { return memory_.data() + begin_; }
  const void* raw() const { return memory_.data() + begin_; }
  std::int64_t count() const { return count_; }
  T operator[](std::int64_t i) const {
    T value;
    std::memcpy(static_cast<void*>(&value), memory_.data() + place(i), sizeof(T));
    return value;
  }
  void set(std::int64_t i, T value) { std::memcpy(memory_.data() + place(i), &value, sizeof(T)); }
  void expect_guards() const {
    const std::size_t end = place(count_);
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (i < begin_ || i >= end) {
        ASSERT_EQ(memory_[i], std::byte{0x5a}) << "written outside, at byte " << i;
      }
    }
  }

 private:
  static constexpr std::size_t guard = 64;
  std::size_t place(std::int64_t i) const { return begin_ + static_cast<std::size_t>(i) * sizeof(T); }

  std::size_t begin_;
  std::int64_t count_;
  std::vector<std::byte> memory_;
};

// Random bits, and so numbers of all kinds; every other float has an ordinary magnitude.
template <class T>
Elements<T> random_elements(std::int64_t count, unsigned seed, std::size_t misalignment = 0) {
  Elements<T> result(count, misalignment);
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0, 20);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t bits = generator();
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    if constexpr (is_float<T>) {
      if (i % 2 == 0) value = T(normal(generator));
    }
    result.set(i, value);
  }
  return result;
}

// -0 comes before +0.
template <class C>
bool comes_first(C a, C b) {
  if constexpr (std::is_floating_point_v<C>) {
    if (a == b) return std::signbit(a) && !std::signbit(b);
  }
  return a < b;
}

template <class T>
Computed<T> combined(ReduceOp op, Computed<T> a, Computed<T> b) {
  if constexpr (is_float<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Computed<T>>::quiet_NaN();
  }
  // Unsigned arithmetic wraps; 64 bits so that promotion does not make it signed again.
  using Wrapping = std::conditional_t<is_float<T>, Computed<T>, std::uint64_t>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return static_cast<Computed<T>>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    case ReduceOp::prod: return static_cast<Computed<T>>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    case ReduceOp::min: return comes_first(b, a) ? b : a;
    case ReduceOp::max: return comes_first(a, b) ? b : a;
  }
  return {};
}

template <class T>
Computed<T> divided(Computed<T> x, std::int64_t divisor) {
  if constexpr (is_float<T>) {
    return x / static_cast<Computed<T>>(divisor);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(x) / divisor);
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(x) / static_cast<std::uint64_t>(divisor));
  }
}

// The expected result of reduce_all, computed with the scalar types.
template <class T>
Elements<T> reduced(ReduceOp op, const std::vector<Elements<T>>& sources, std::int64_t divisor = 1) {
  Elements<T> result(sources[0].count());
  for (std::int64_t i = 0; i < result.count(); ++i) {
    auto value = static_cast<Computed<T>>(sources[0][i]);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      value = combined<T>(op, value, static_cast<Computed<T>>(sources[s][i]));
    }
    result.set(i, static_cast<T>(divided<T>(value, divisor)));
  }
  return result;
}

// Compares bits, except that any two NaNs are equal.
template <class T>
void expect_same(const Elements<T>& actual, const Elements<T>& expected) {
  ASSERT_EQ(actual.count(), expected.count());
  for (std::int64_t i = 0; i < actual.count(); ++i) {
    const T a = actual[i];
    const T e = expected[i];
    if constexpr (is_float<T>) {
      if (std::isnan(static_cast<Computed<T>>(e)) && std::isnan(static_cast<Computed<T>>(a))) continue;
    }
    ASSERT_EQ(std::memcmp(&a, &e, sizeof(T)), 0)
        << "element " << i << " is " << +static_cast<Computed<T>>(a) << ", not " << +static_cast<Computed<T>>(e);
  }
}

template <class T>
void reduce_into(ReduceOp op, const std::vector<Elements<T>>& sources, void* out, std::int64_t divisor) {
  std::vector<const void*> raw;
  for (const Elements<T>& source : sources) raw.push_back(source.raw());
  reduce_all(op, dtype_of<T>, raw.data(), static_cast<int>(raw.size()), out, sources[0].count(), divisor);
}

TEST(Reduce, EqualsScalarArithmeticAtEverySizeAndAddress) {
  for_each_type([]<class T>(T) {
    for (const std::int64_t size : kernel_sizes) {
      for (const std::size_t misalignment : {0, 1, 3}) {
        const std::vector<Elements<T>> sources{random_elements<T>(size, 1, misalignment), random_elements<T>(size, 2, 1)};
        for (const ReduceOp op : all_ops) {
          SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(size));
          Elements<T> out(size, 2 * misalignment);
          reduce(op, dtype_of<T>, sources[0].raw(), sources[1].raw(), out.raw(), size);
          expect_same(out, reduced(op, sources));
          out.expect_guards();
          Elements<T> in_place = sources[1];
          reduce(op, dtype_of<T>, sources[0].raw(), in_place.raw(), in_place.raw(), size);
          expect_same(in_place, out);
          in_place.expect_guards();
        }
      }
    }
  });
}

TEST(Reduce, NanOnEitherSideGivesNanAndZerosHaveAnOrder) {
  for_each_type([]<class T>(T) {
    if constexpr (is_float<T>) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const float infinity = std::numeric_limits<float>::infinity();
      Elements<T> a(49);
      Elements<T> b(49);
      std::int64_t i = 0;
      for (const float left : {nan, -nan, 1.0F, -infinity, infinity, 0.0F, -0.0F}) {
        for (const float right : {nan, -nan, 2.0F, -infinity, infinity, 0.0F, -0.0F}) {
          a.set(i, T(left));
          b.set(i++, T(right));
        }
      }
      for (const ReduceOp op : all_ops) {
        SCOPED_TRACE(name(op));
        Elements<T> out(a.count());
        reduce(op, dtype_of<T>, a.raw(), b.raw(), out.raw(), a.count());
        expect_same(out, reduced(op, std::vector{a, b}));
        // Two ranks that exchange their vectors each combine their own first.
        Elements<T> swapped(a.count());
        reduce(op, dtype_of<T>, b.raw(), a.raw(), swapped.raw(), a.count());
        expect_same(swapped, out);
      }
    }
  });
}

TEST(ReduceAll, EqualsScalarArithmeticInTheOrderOfTheSources) {
  for_each_type([]<class T>(T) {
    for (const int source_count : {1, 2, 3, 9, 40}) {
      if (few_cases() && (source_count == 1 || source_count == 9)) continue;
      for (const std::int64_t size : {0, 1, 17, 65, 257}) {
        if (calls_are_slow() && (size == 1 || size == 65)) continue;
        std::vector<Elements<T>> sources;
        for (int s = 0; s < source_count; ++s) {
          sources.push_back(random_elements<T>(size, static_cast<unsigned>(s) + 1, s % 2 == 0 ? 1 : 4));
        }
        for (const ReduceOp op : all_ops) {
          for (const std::int64_t divisor : {1, 3, 8}) {
            if (few_cases() && divisor == 8) continue;
            SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(source_count) + " x " + std::to_string(size));
            const Elements<T> expected = reduced(op, sources, divisor);
            Elements<T> out(size, 3);
            reduce_into(op, sources, out.raw(), divisor);
            expect_same(out, expected);
            out.expect_guards();
            for (std::size_t s = 0; s < sources.size(); s += calls_are_slow() ? 13 : 2) {
              std::vector<Elements<T>> copies = sources;
              reduce_into(op, copies, copies[s].raw(), divisor);
              expect_same(copies[s], expected);
            }
          }
        }
      }
    }
  });
}

TEST(ReduceAll, TakesManyElementsAndSources) {
  for_each_type([]<class T>(T) {
    for (const unsigned source_count : {3U, 17U, 70U}) {
      std::vector<Elements<T>> sources;
      for (unsigned s = 0; s < source_count; ++s) sources.push_back(random_elements<T>(10001, s + 1, s));
      const Elements<T> expected = reduced(ReduceOp::avg, sources, 3);
      Elements<T> out(10001, 1);
      reduce_into(ReduceOp::avg, sources, out.raw(), 3);
      expect_same(out, expected);
      out.expect_guards();
      reduce_into(ReduceOp::avg, sources, sources[1].raw(), 3);
      expect_same(sources[1], expected);
    }
  });
}

// 2^(mantissa bits + 1) + 1 is a midpoint and rounds back, so that a sum that is rounded at every step does not grow.
TEST(ReduceAll, RoundsNarrowFloatsOnce) {
  for_each_type([]<class T>(T) {
    if constexpr (is_narrow(dtype_of<T>)) {
      const float large = std::is_same_v<T, bf16> ? 256 : std::is_same_v<T, f16> ? 2048 : std::is_same_v<T, f8e4m3> ? 16 : 8;
      std::vector<Elements<T>> sources(3, Elements<T>(70));
      for (std::int64_t i = 0; i < 70; ++i) {
        for (std::size_t s = 0; s < 3; ++s) sources[s].set(i, T(s == 0 ? large : 1.0F));
      }
      Elements<T> once(70);
      reduce_into(ReduceOp::sum, sources, once.raw(), 1);
      Elements<T> twice = sources[0];
      for (std::size_t s = 1; s < 3; ++s) {
        reduce(ReduceOp::sum, dtype_of<T>, twice.raw(), sources[s].raw(), twice.raw(), 70);
      }
      for (std::int64_t i = 0; i < 70; ++i) {
        EXPECT_EQ(static_cast<float>(once[i]), large + 2);
        EXPECT_EQ(static_cast<float>(twice[i]), large);
      }
    }
  });
}

TEST(ReduceAll, AveragesNumbersWhoseSumIsTooLarge) {
  for_each_type([]<class T>(T) {
    if constexpr (is_narrow(dtype_of<T>) && !std::is_same_v<T, bf16>) {  // a sum of bf16 overflows f32, too
      const float largest = std::is_same_v<T, f16> ? 65504 : std::is_same_v<T, f8e4m3> ? 448 : 57344;
      std::vector<Elements<T>> sources(4, Elements<T>(1));
      for (Elements<T>& source : sources) source.set(0, T(largest));
      Elements<T> out(1);
      reduce_into(ReduceOp::avg, sources, out.raw(), 4);
      EXPECT_EQ(static_cast<float>(out[0]), largest);
    }
  });
}

// Every out gets the same result, streamed or not, and nothing else is written; one out is also a source.
template <class T>
void expect_same_at_all_outs(ReduceOp op, const std::vector<Elements<T>>& sources,
                             const std::vector<std::size_t>& alignments, std::int64_t divisor, bool streaming) {
  const std::int64_t count = sources[0].count();
  Elements<T> expected(count);
  reduce_into(op, sources, expected.raw(), divisor);
  std::vector<Elements<T>> inputs = sources;
  std::vector<Elements<T>> outs;
  for (const std::size_t misalignment : alignments) outs.emplace_back(count, misalignment);
  std::vector<const void*> from;
  for (const Elements<T>& source : inputs) from.push_back(source.raw());
  std::vector<void*> to;
  for (Elements<T>& out : outs) to.push_back(out.raw());
  to.push_back(inputs.back().raw());
  reduce_all(op, dtype_of<T>, from.data(), static_cast<int>(from.size()), to.data(), static_cast<int>(to.size()), count,
             divisor, streaming);
  for (const Elements<T>& out : outs) {
    expect_same(out, expected);
    out.expect_guards();
  }
  expect_same(inputs.back(), expected);
  inputs.back().expect_guards();
}

TEST(ReduceAll, WritesTheSameToAllOuts) {
  HOST_ONLY("a GPU writes one result");
  for_each_type([]<class T>(T) {
    for (const std::int64_t size : {0, 1, 5, 16, 65, 257, 3001}) {
      std::vector<Elements<T>> sources;
      for (unsigned s = 0; s < 3; ++s) sources.push_back(random_elements<T>(size, s + 1, s * sizeof(T)));
      for (const ReduceOp op : all_ops) {
        for (const std::int64_t divisor : {1, 3}) {
          for (const bool streaming : {false, true}) {
            SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(size) + " by " + std::to_string(divisor) +
                         (streaming ? " streaming" : ""));
            // All outs aligned alike, aligned differently, and not even aligned to elements.
            for (const auto& alignments : {std::vector<std::size_t>{}, {0, 64, 0}, {8, 8, 24, 32}, {1, 0, 3}}) {
              expect_same_at_all_outs(op, sources, alignments, divisor, streaming);
            }
          }
        }
      }
    }
  });
}

TEST(Copy, CopiesEveryByteAndNoOther) {
  HOST_ONLY("copies on a GPU are CUDA's");
  for (const bool streaming : {false, true}) {
    for (const std::int64_t size : {0, 1, 63, 64, 127, 128, 129, 1000, 70001}) {
      for (const std::size_t from : {0, 1, 32}) {
        for (const std::size_t to : {0, 7, 16, 63}) {
          SCOPED_TRACE(std::to_string(size) + " bytes");
          const auto source = random_elements<std::uint8_t>(size, 1, from);
          Elements<std::uint8_t> target(size, to);
          copy(source.raw(), target.raw(), static_cast<std::size_t>(size), streaming);
          expect_same(target, source);
          target.expect_guards();
        }
      }
    }
  }
}

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

// Results have the same bits on every processor.
TEST(Reduce, AllInstructionSetsEqualScalarArithmetic) {
  HOST_ONLY("the GPU has no instruction sets to choose from");
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for_each_type([]<class T>(T) {
      std::vector<Elements<T>> sources;
      for (const unsigned seed : {1, 2, 3}) sources.push_back(random_elements<T>(3001, seed, seed));
      for (const ReduceOp op : all_ops) {
        SCOPED_TRACE(name(op));
        Elements<T> out(3001, 1);
        reduce_into(op, sources, out.raw(), 3);
        expect_same(out, reduced(op, sources, 3));
        for (const bool streaming : {false, true}) expect_same_at_all_outs(op, sources, {0, 64, 3, 8}, 3, streaming);
        divide(dtype_of<T>, out.raw(), 3001, 5);
        expect_same(out, reduced(ReduceOp::sum, std::vector{reduced(op, sources, 3)}, 5));
      }
      Elements<T> out(3001, 1);
      multiply(dtype_of<T>, sources[0].raw(), out.raw(), 3001, 2);
      Elements<T> expected(3001);
      for (std::int64_t i = 0; i < 3001; ++i) {
        expected.set(i, static_cast<T>(combined<T>(ReduceOp::prod, static_cast<Computed<T>>(sources[0][i]), 2)));
      }
      expect_same(out, expected);
    });
    hwy::SetSupportedTargetsForTest(0);
  }
}

TEST(Reduce, WhatDoesNotFitIsRefusedInASentence) {
  float x[4] = {};
  const void* const sources[] = {x};
  const auto no_type = static_cast<DType>(12);
  const auto no_op = static_cast<ReduceOp>(6);
  expect_refusal([&] { reduce(ReduceOp::sum, no_type, x, x, x, 4); }, "12");
  expect_refusal([&] { reduce(no_op, DType::f32, x, x, x, 4); }, "6");
  expect_refusal([&] { reduce(no_op, DType::i32, x, x, x, 4); }, "6");
  expect_refusal([&] { reduce_all(no_op, DType::f16, sources, 1, x, 4); }, "6");
  expect_refusal([&] { reduce_all(ReduceOp::sum, no_type, sources, 1, x, 4); }, "12");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 0, x, 4); }, "0 sources");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 1, x, 4, 0); }, "divided by 0");
  void* const outs[] = {x};
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 1, outs, 0, 4, 1, false); }, "0 outs");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 0, outs, 1, 4, 1, true); }, "0 sources");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 1, outs, 1, 4, 0, true); }, "divided by 0");
  expect_refusal([&] { reduce_all(no_op, DType::f32, sources, 1, outs, 1, 4, 1, true); }, "6");
  expect_refusal([&] { divide(DType::f32, x, 4, -1); }, "divided by -1");
  expect_refusal([&] { divide(no_type, x, 4, 1); }, "12");
  expect_refusal([&] { multiply(no_type, x, x, 4, 1); }, "12");
  expect_refusal([&] { convert(no_type, x, DType::f32, x, 4); }, "12");
  expect_refusal([&] { convert(DType::f32, x, no_type, x, 4); }, "12");
}

}  // namespace
}  // namespace stretto::kernels::tested
