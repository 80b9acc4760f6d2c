#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/value_parts.hpp"

namespace stretto {

// A value that executors keep: the program that made it, the client's request, and its place among Program::kept().
using KeptName = std::array<std::uint64_t, 3>;

// Where an executor's parts of some values lie in one message, each aligned for every type.
struct PackedPart {
  int value = 0;
  int device = 0;
  Shape shape;
  std::size_t offset = 0;
};

struct PackedParts {
  std::vector<PackedPart> parts;
  std::size_t bytes = 0;
};

// sent_once: of copies, only the first device's.
inline PackedParts packed_parts(const Program& program, const std::vector<std::vector<int>>& groups,
                                const std::vector<int>& values, int executor, bool sent_once) {
  constexpr std::size_t alignment = 64;
  PackedParts result;
  for (const int value : values) {
    const Program::TypedValue& its = program.values()[static_cast<std::size_t>(value)];
    const std::vector<int>& group = groups[static_cast<std::size_t>(its.group)];
    const int device = device_of(group, executor);
    if (device < 0 || (sent_once && its.type.placement.dimension < 0 && device > 0)) continue;
    const Shape shape = part_shape(its.type, static_cast<int>(group.size()), device);
    const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * size_of(its.type.dtype);
    result.parts.push_back({value, device, shape, result.bytes});
    result.bytes += (bytes + alignment - 1) / alignment * alignment;
  }
  return result;
}

}  // namespace stretto
