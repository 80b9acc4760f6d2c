#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// A stand-in's memory that other processes can open: a nameless file, which the handle locates in /proc. The file counts how
// often it is open.
class HostSharing {
 public:
  HostSharing() = default;
  ~HostSharing();  // unmaps closed and released memory only here, so that code that still uses it does not crash
  HostSharing(const HostSharing&) = delete;
  HostSharing& operator=(const HostSharing&) = delete;

  GpuSharedMemory allocate(std::size_t bytes);
  // Returns null and sets broken_rule if the handle is one of this process. Throws Error(unavailable) if the memory does not
  // exist any more.
  std::byte* open(const GpuShareHandle& handle, std::string& broken_rule);
  // Both return the broken rule; empty: none.
  std::string close(std::byte* memory);
  std::string release(std::byte* memory);

  bool holds(const void* first, std::size_t bytes) const;
  std::size_t bytes_in_use() const;  // allocated, or open
  std::size_t opened() const;

 private:
  struct Header;
  struct Mapping {
    std::size_t bytes = 0;
    int file = -1;  // the descriptor of memory that this process allocated; -1: opened memory
  };
  static Header& header_of(std::byte* memory);
  void forget(std::map<const std::byte*, Mapping>::iterator mapping);

  mutable std::mutex mutex_;
  std::map<const std::byte*, Mapping> mappings_;
  std::vector<std::pair<std::byte*, std::size_t>> past_;
};

}  // namespace stretto
