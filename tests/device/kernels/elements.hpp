#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "device/element_types.hpp"
#include "device/kernels/tested_kernels.hpp"
#include "stretto/kernels.hpp"

// Elements of every type, and what kernels must make of them by scalar arithmetic.
namespace stretto::kernels::tested {

inline constexpr DType all_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8,     DType::u8,
                                      DType::i32, DType::u32, DType::i64,  DType::u64, DType::f8e4m3, DType::f8e5m2};
inline constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min,
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
inline constexpr bool is_float = !std::is_integral_v<T>;

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

}  // namespace stretto::kernels::tested
