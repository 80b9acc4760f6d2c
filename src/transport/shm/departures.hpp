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
  // Of a count in the file: the members that have left the communicator, and touch the range no more.
  std::size_t departures = 0;
};

// Those counts of one segment. All ranks of the host add to them. Each page of counts is mapped once, at its first use.
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
