#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

// Which memory steps touch, and whether some may do so at the same time. Sorted, so that many steps cost little.
namespace stretto {

struct Range {  // of cells
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct Access {
  Range range;
  bool writes = false;
};

inline bool by_begin(const Access& a, const Access& b) { return a.range.begin < b.range.begin; }

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

inline std::vector<Range> merged(const std::vector<Access>& sorted, bool writes_only) {
  std::vector<Range> ranges;
  for (const Access& access : sorted) {
    if (writes_only && !access.writes) continue;
    if (ranges.empty() || access.range.begin > ranges.back().end) {
      ranges.push_back(access.range);
    } else {
      ranges.back().end = std::max(ranges.back().end, access.range.end);
    }
  }
  return ranges;
}

inline bool meet(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].begin < b[j].end && b[j].begin < a[i].end) return true;
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return false;
}

}  // namespace stretto
