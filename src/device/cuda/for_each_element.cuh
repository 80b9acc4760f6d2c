#pragma once
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"

// Element-wise kernels: a Body computes a few consecutive elements, and this file calls it for all elements. A Body has
//   pack      the number of consecutive elements that it takes if addresses allow, 16 bytes or more of each array;
//   together  the number of packs, far apart from each other, that it takes at a time, so that enough loads are in flight;
//   run<W, U>(i, step)  for the elements i + u * step ... + W - 1, u < U; W is pack or 1. It loads all before it stores.
namespace stretto::gpu_code {

// The elements of a launch: the head before the first pack, the packs, and the rest after them.
struct Range {
  std::int64_t count;
  std::int64_t head = 0;
  bool aligned = false;  // all arrays are aligned after the head; otherwise elements are taken one by one
  int pack;

  // Packs begin at the first aligned element of `array`.
  Range(std::int64_t elements, int pack_elements, const void* array, std::size_t element_bytes)
      : count(elements), pack(pack_elements) {
    const std::size_t alignment = pack_alignment(static_cast<std::size_t>(pack) * element_bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(array);
    if (address % element_bytes != 0) return;
    head = std::min<std::int64_t>(count,
                                  static_cast<std::int64_t>((alignment - address % alignment) % alignment / element_bytes));
    aligned = true;
  }
  void also(const void* array, std::size_t element_bytes) {
    const std::size_t alignment = pack_alignment(static_cast<std::size_t>(pack) * element_bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(array) + static_cast<std::uintptr_t>(head) * element_bytes;
    if (address % alignment != 0) aligned = false;
  }
  // Ensures that no pack spans two rows.
  void in_rows_of(std::int64_t columns) {
    if (head != 0 || columns % pack != 0) aligned = false;
  }
};

// The column of element i of a matrix. Division of 32 bits is much cheaper than of 64.
__device__ inline std::int64_t column_of(std::int64_t i, std::int64_t columns) {
  if (((i | columns) >> 32) == 0) return static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(columns);
  return i % columns;
}

constexpr int element_threads = 256;

// Runs the body for this thread's share of the elements.
template <class Body>
__device__ inline void take_turns(const Range& range, Body& body) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  if (!range.aligned) {
    for (std::int64_t i = thread; i < range.count; i += threads) body.template run<1, 1>(i, 0);
    return;
  }
  constexpr int pack = Body::pack;
  constexpr int together = Body::together;
  const std::int64_t packs = (range.count - range.head) / pack;
  std::int64_t p = thread;
  for (; p + (together - 1) * threads < packs; p += together * threads)
    body.template run<pack, together>(range.head + p * pack, threads * pack);
  if constexpr (together > 1) {
    for (; p < packs; p += threads) body.template run<pack, 1>(range.head + p * pack, 0);
  }
  const std::int64_t behind = range.head + packs * pack;  // fewer elements than a pack, as in the head
  if (thread < range.head) body.template run<1, 1>(thread, 0);
  if (thread < range.count - behind) body.template run<1, 1>(behind + thread, 0);
}

template <class Body>
__global__ void __launch_bounds__(element_threads) element_kernel(const Range range, const __grid_constant__ Body body) {
  take_turns(range, body);
}

inline unsigned element_blocks(const Range& range, int together) {
  const std::int64_t pieces = range.aligned ? divided_up(range.count, std::int64_t{range.pack} * together) : range.count;
  return blocks_for(divided_up(pieces, element_threads), 16);
}

template <class Body>
void for_each_element(const char* what, const Range& range, const Body& body, GpuStream stream) {
  if (range.count <= 0) return;
  launch(what, element_kernel<Body>, element_blocks(range, Body::together), element_threads, stream, range, body);
}

}  // namespace stretto::gpu_code
