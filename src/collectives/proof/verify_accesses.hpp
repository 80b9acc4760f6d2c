#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

// The memory that steps touch, and whether some steps may touch it at the same time. Lists are sorted, so that many steps
// cost little.
namespace stretto {

struct Range {  // of cells
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct Access {
  Range range;
  bool writes = false;
};

inline void sort_by_begin(std::vector<Access>& accesses) {
  std::sort(accesses.begin(), accesses.end(),
            [](const Access& a, const Access& b) { return a.range.begin < b.range.begin; });
}

// Whether one access of a list, sorted by begin, writes what another one touches.
inline bool clash_within(const std::vector<Access>& accesses) {
  std::int64_t read_up_to = 0;
  std::int64_t written_up_to = 0;
  for (const Access& access : accesses) {
    if (access.range.begin < written_up_to || (access.writes && access.range.begin < read_up_to)) return true;
    std::int64_t& up_to = access.writes ? written_up_to : read_up_to;
    up_to = std::max(up_to, access.range.end);
  }
  return false;
}

}  // namespace stretto
