#include "memory_loop.hpp"

#include <algorithm>

namespace memory_loop {
namespace {

constexpr std::size_t line = 64;
using Line = std::uint64_t __attribute__((vector_size(line), aligned(8), may_alias));

// An array on the way through it. The lines of a turn lie in one row.
struct Cursor {
  const Array& array;
  std::size_t lines_of_turn;
  std::size_t row = 0, line_of_row = 0;

  __attribute__((always_inline)) Line* next() {
    const std::size_t at = array.order == nullptr ? row : static_cast<std::size_t>(array.order[row]);
    auto* const lines = reinterpret_cast<Line*>(array.data + at * array.row_bytes) + line_of_row;
    line_of_row += lines_of_turn;
    if (line_of_row * line >= array.row_bytes) {
      line_of_row = 0;
      ++row;
    }
    return lines;
  }
};

// turn: the bytes of the longest array between two turns of the others, which take their shares.
template <std::size_t turn>
__attribute__((always_inline)) inline void take_turns(const std::vector<Array>& arrays) {
  std::size_t longest = 0;
  for (const Array& array : arrays) longest = std::max(longest, array.bytes);
  const std::size_t turns = std::max<std::size_t>(1, longest / turn);
  std::vector<Cursor> cursors;
  cursors.reserve(arrays.size());
  for (const Array& array : arrays) cursors.push_back({array, array.bytes / turns / line});
  Line sum{};
  for (std::size_t i = 0; i < turns; ++i) {
    for (Cursor& cursor : cursors) {
      Line* const lines = cursor.next();
      const std::size_t count = cursor.lines_of_turn;
      switch (cursor.array.access) {
        case Access::read:
          for (std::size_t k = 0; k < count; ++k) sum += lines[k];
          break;
        case Access::write:
          for (std::size_t k = 0; k < count; ++k) lines[k] = Line{1};
          break;
        case Access::update:
          for (std::size_t k = 0; k < count; ++k) lines[k] += 1;
          break;
      }
    }
  }
  [[maybe_unused]] static volatile std::uint64_t kept;  // the compiler must not leave the reads out
  kept = sum[0];
}

#ifdef __x86_64__
#define WIDEST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST_VECTORS
#endif

WIDEST_VECTORS void by_a_few_lines(const std::vector<Array>& arrays) { take_turns<4 * line>(arrays); }
WIDEST_VECTORS void by_many_lines(const std::vector<Array>& arrays) { take_turns<12 * line>(arrays); }

}  // namespace

std::vector<Loop> loops() { return {by_a_few_lines, by_many_lines}; }

}  // namespace memory_loop
