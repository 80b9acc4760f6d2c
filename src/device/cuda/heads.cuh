#pragma once
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"
#include "stretto/kernels.hpp"

// kernels::TokenHeads for kernels: the places of the heads of tokens.
namespace stretto::gpu_code {

struct Heads {
  void* first;  // the first head of the first token
  std::int64_t step, part_step;
  std::uint32_t parts, size;  // size: elements of a head

  Heads(const kernels::TokenHeads& of, std::int64_t head_size)
      : first(of.tensor.size() > 0 ? of.tensor.view(of.first_column, {1}).raw() : nullptr),
        step(of.tensor.columns()),
        part_step(of.part_step),
        parts(static_cast<std::uint32_t>(of.parts)),
        size(static_cast<std::uint32_t>(head_size)) {}

  // The first element of a head, counted from that of the first.
  __device__ std::int64_t at(std::int64_t token, std::uint32_t head) const {
    if (parts == 1) return token * step + std::int64_t{head} * size;
    return token * step + head % parts * part_step + std::int64_t{head / parts} * size;
  }

  // Whether pieces of `each` elements, into which heads are cut, consist of aligned packs.
  bool consist_of_packs(std::int64_t each, int pack) const {
    return reinterpret_cast<std::uintptr_t>(first) % 16 == 0 && each % pack == 0 && step % pack == 0 &&
           (parts == 1 || part_step % pack == 0);
  }
};

// A number of an item in groups of so many. Division of 32 bits is much cheaper than of 64.
struct InGroups {
  std::int64_t group;
  std::uint32_t item;
};
__device__ inline InGroups in_groups(std::int64_t i, std::uint32_t size) {
  if (i >> 32 == 0) {
    const auto small = static_cast<std::uint32_t>(i);
    return {small / size, small % size};
  }
  return {i / size, static_cast<std::uint32_t>(i % size)};
}

}  // namespace stretto::gpu_code
