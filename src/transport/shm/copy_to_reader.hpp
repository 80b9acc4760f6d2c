#pragma once
#include <cstddef>

namespace stretto {

// Copies into memory that another core reads next, as memcpy does. To write a line that the reader's cache holds, a core
// takes it from there. That is cheap between cores that share a cache, and costs several times as much as memory between
// others: of two sockets, or of two core complexes. So this watches what some of its copies take, and while lines come from
// afar its stores bypass the caches. Either way the bytes are the same. A copy belongs to one thread at a time.
class CopyToReader {
 public:
  void operator()(void* to, const void* from, std::size_t bytes);
  void watch(double seconds, std::size_t bytes);  // what a copy through the caches has taken
  bool bypasses() const { return to_bypass_ > 0; }

 private:
  std::size_t copied_ = 0;  // bytes, until enough were to have touched all pages
  int since_watched_ = 0;
  int slow_in_a_row_ = 0;  // of those watched
  int to_bypass_ = 0;      // as many copies as bypass the caches before the next one that is watched
};

}  // namespace stretto
