#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "transport/shm/mapping.hpp"

namespace stretto {

// The part of a rank's segment that serves one communicator.
struct Area {
  std::size_t offset = 0;  // of the range in the file
  // Offset in the file of a count: the members that have left the communicator, and no longer touch the range.
  std::size_t departures = 0;
};

// The counts of departed members in one segment. All ranks of the host add to them. Each page of counts is mapped once, at
// its first use.
class Departures {
 public:
  explicit Departures(int file) : file_(file) {}
  std::atomic<std::uint32_t>& at(const Area& area);

 private:
  int file_;
  std::mutex mutex_;
  std::map<std::size_t, Mapping> pages_;  // by offset
};

}  // namespace stretto
