#pragma once
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

inline Tensor random_tensor(Shape shape, DType dtype, unsigned seed = 1, double deviation = 1) {
  Tensor result(std::move(shape), dtype);
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, deviation);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, normal(generator));
  return result;
}

// Small integers: every sum of them is exact in every accumulator type.
inline Tensor integer_tensor(Shape shape, DType dtype, unsigned seed = 1) {
  Tensor result(std::move(shape), dtype);
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> digit(-8, 8);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, digit(generator));
  return result;
}

inline std::vector<double> values(const Tensor& tensor) {
  std::vector<double> result(static_cast<std::size_t>(tensor.size()));
  for (std::int64_t i = 0; i < tensor.size(); ++i) result[static_cast<std::size_t>(i)] = tensor.at(i);
  return result;
}

inline Tensor tensor_of(const std::vector<double>& values, DType dtype) {
  Tensor result({static_cast<std::int64_t>(values.size())}, dtype);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, values[static_cast<std::size_t>(i)]);
  return result;
}

// Whether two tensors, or lists of tensors, have the same type, size and bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace stretto
