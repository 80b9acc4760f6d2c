#include "memory_loop.hpp"

#include <algorithm>
#include <cstdint>

namespace memory_loop {
namespace {

constexpr std::size_t line = 64;
using Line = std::uint64_t __attribute__((vector_size(line), aligned(8), may_alias));

// turn: the bytes of the longest array between two turns of the others, which take their shares.
template <std::size_t turn>
__attribute__((always_inline)) inline void take_turns(const std::vector<Array>& arrays) {
  std::size_t longest = 0;
  for (const Array& array : arrays) longest = std::max(longest, array.bytes);
  const std::size_t turns = std::max<std::size_t>(1, longest / turn);
  Line sum{};
  for (std::size_t i = 0; i < turns; ++i) {
    for (const Array& array : arrays) {
      auto* at = reinterpret_cast<Line*>(array.data + array.bytes / line * i / turns * line);
      const auto* const end = reinterpret_cast<Line*>(array.data + array.bytes / line * (i + 1) / turns * line);
      switch (array.access) {
        case Access::read:
          for (; at < end; ++at) sum += *at;
          break;
        case Access::write:
          for (; at < end; ++at) *at = Line{1};
          break;
        case Access::update:
          for (; at < end; ++at) *at += 1;
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
WIDEST_VECTORS void by_many_lines(const std::vector<Array>& arrays) { take_turns<32 * line>(arrays); }

}  // namespace

std::vector<Loop> loops() { return {by_a_few_lines, by_many_lines}; }

}  // namespace memory_loop
