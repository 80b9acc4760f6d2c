#pragma once
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "device/kernels/tested_kernels.hpp"
#include "stretto/tensor.hpp"
#include "support/data.hpp"

// Shared by the tests of kernels: sizes, types, and how near results must be.
namespace stretto {

// Sizes around the widths of vectors, and the number of elements by which a buffer's start is moved.
inline const std::vector<std::int64_t> kernel_sizes = {0, 1, 3, 7, 16, 17, 63, 65, 1000};
inline const std::vector<std::int64_t> kernel_offsets = {0, 1, 5};

inline constexpr DType compute_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

// A compute type and a type that gradients of its parameters may have.
struct TypeAndGradient {
  DType type, gradient;
};
inline constexpr TypeAndGradient gradient_types[] = {{DType::f64, DType::f64},  {DType::f32, DType::f32},
                                                     {DType::bf16, DType::f32}, {DType::bf16, DType::bf16},
                                                     {DType::f16, DType::f32},  {DType::f16, DType::f16}};

// A few units in the last place of a type.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-14;
    case DType::f32: return 4e-7;
    case DType::bf16: return 1.0 / 256;
    case DType::f16: return 1.0 / 2048;
    default: return 0;  // integers are exact, and only reductions compute on elements of 8 bits
  }
}

// Each value must be within the type's tolerance relative to the expected value, or to scale if that is larger; numbers
// below 2^-14 are subnormal in f16. A GPU forms sums in another order, and its exponentials have an error of one unit more.
inline void expect_close(const Tensor& actual, const std::vector<double>& expected, double scale = 0, double slack = 1) {
  ASSERT_EQ(static_cast<std::size_t>(actual.size()), expected.size());
  if (test_device() != Device::cpu) slack *= 2;
  if (actual.dtype() == DType::f16) scale = std::max(scale, 0x1p-14);
  for (std::int64_t i = 0; i < actual.size(); ++i) {
    const double e = expected[static_cast<std::size_t>(i)];
    const double allowed = slack * tolerance(actual.dtype()) * std::max(std::abs(e), scale);
    ASSERT_NEAR(actual.at(i), e, allowed) << "element " << i << " of " << actual.size() << " " << name(actual.dtype());
  }
}

// From numbers for which the gate of an activation is closed to numbers for which it is open, and numbers close to zero.
inline Tensor activation_inputs(DType dtype) {
  std::vector<double> numbers;
  for (int i = -4000; i <= 4000; ++i) numbers.push_back(i / 400.0);
  for (int exponent = -40; exponent < 6; ++exponent) {
    numbers.push_back(std::ldexp(1.1, exponent));
    numbers.push_back(-std::ldexp(1.3, exponent));
  }
  return tensor_of(numbers, dtype);
}

inline std::vector<double> applied(const Tensor& x, double (*function)(double)) {
  std::vector<double> result = values(x);
  for (double& value : result) value = function(value);
  return result;
}

// Runs a test with every instruction set that this build and this processor have; on a GPU, which has none, it skips it.
inline void on_each_instruction_set(const std::function<void()>& test) {
  HOST_ONLY("the GPU has no instruction sets to choose from");
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    test();
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace stretto
