// Plain loops over memory, as the limit of a kernel that moves the same bytes: they read some arrays, write some and update
// some in place, and compute nothing else. One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace memory_loop {

enum class Access { read, write, update };

// Rows of which a loop reads or writes every byte once; an update does both. With an order, row i is the order[i]-th of the
// array.
struct Array {
  Access access;
  std::byte* data;
  std::size_t bytes;      // of all rows that are accessed, a multiple of row_bytes
  std::size_t row_bytes;  // 12 or 24 cache lines
  const std::int32_t* order = nullptr;

  std::size_t moved() const { return bytes * (access == Access::update ? 2 : 1); }
};

// The loops take a few lines, or many lines, of each array in turn. The fastest one is the limit.
using Loop = void (*)(const std::vector<Array>& arrays);
std::vector<Loop> loops();

}  // namespace memory_loop
