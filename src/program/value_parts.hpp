#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/parts.hpp"
#include "stretto/program.hpp"

namespace stretto {

// The shape of the part that device i of so many has of a value.
inline Shape part_shape(const ValueType& type, int devices, int i) {
  Shape shape = type.shape;
  if (type.placement.dimension >= 0) {
    std::int64_t& extent = shape[static_cast<std::size_t>(type.placement.dimension)];
    extent = part_size(extent, devices, i);
  }
  return shape;
}

inline std::int64_t element_count(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

inline std::int64_t part_bytes(const ValueType& type, int devices, int i) {
  return element_count(part_shape(type, devices, i)) * static_cast<std::int64_t>(size_of(type.dtype));
}

inline Division division_of(const ValueType& type, std::vector<int> ranks) {
  if (type.placement.dimension < 0) return Division::replicated(type.shape, std::move(ranks));
  return Division::along(static_cast<std::size_t>(type.placement.dimension), type.shape, std::move(ranks));
}

// The device that an executor is in a group, or -1.
inline int device_of(const std::vector<int>& group, int executor) {
  const auto found = std::ranges::find(group, executor);
  return found == group.end() ? -1 : static_cast<int>(found - group.begin());
}

}  // namespace stretto
