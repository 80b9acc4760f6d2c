#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "stretto/export.hpp"

namespace stretto {

// The extents of an array's dimensions, or the indices of one of its elements: a list of at most `most` integers that lies
// in the object itself, so that copies do not allocate. Constructors and push_back() throw Error(invalid_argument) for more.
class Shape {
 public:
  static constexpr std::size_t most = 6;
  using value_type = std::int64_t;
  using iterator = std::int64_t*;
  using const_iterator = const std::int64_t*;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> extents) : size_(checked(extents.size())) {
    std::copy(extents.begin(), extents.end(), extents_.begin());
  }
  constexpr Shape(std::size_t dimensions, std::int64_t extent) : size_(checked(dimensions)) {
    std::fill(begin(), end(), extent);
  }

  constexpr std::size_t size() const { return size_; }  // the number of dimensions
  constexpr bool empty() const { return size_ == 0; }
  constexpr std::int64_t& operator[](std::size_t dimension) { return extents_[dimension]; }
  constexpr const std::int64_t& operator[](std::size_t dimension) const { return extents_[dimension]; }
  constexpr std::int64_t& front() { return extents_.front(); }
  constexpr const std::int64_t& front() const { return extents_.front(); }
  constexpr std::int64_t& back() { return extents_[size_ - 1]; }
  constexpr const std::int64_t& back() const { return extents_[size_ - 1]; }
  constexpr iterator begin() { return extents_.data(); }
  constexpr iterator end() { return extents_.data() + size_; }
  constexpr const_iterator begin() const { return extents_.data(); }
  constexpr const_iterator end() const { return extents_.data() + size_; }
  constexpr void push_back(std::int64_t extent) {
    size_ = checked(size_ + 1);
    extents_[size_ - 1] = extent;
  }

  constexpr void insert(iterator before, std::int64_t extent) {
    const std::ptrdiff_t place = before - begin();
    push_back(extent);
    std::rotate(begin() + place, end() - 1, end());
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  [[noreturn]] STRETTO_API static void refuse(std::size_t dimensions);
  static constexpr std::size_t checked(std::size_t dimensions) {
    if (dimensions > most) refuse(dimensions);
    return dimensions;
  }

  std::array<std::int64_t, most> extents_ = {};
  std::size_t size_ = 0;
};

}  // namespace stretto
