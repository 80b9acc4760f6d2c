#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// A stand-in's memory that other processes open: a nameless file, whose handle says where /proc has it. The file knows how
// often it is open.
class HostSharing {
 public:
  HostSharing() = default;
  ~HostSharing();  // only now does what was closed or released go: who still uses it does not crash
  HostSharing(const HostSharing&) = delete;
  HostSharing& operator=(const HostSharing&) = delete;

  GpuSharedMemory allocate(std::size_t bytes);
  // Null, and the rule that was broken, where the handle is one of this process. Throws Error(unavailable) where there is
  // no such memory any more.
  std::byte* open(const GpuShareHandle& handle, std::string& broken_rule);
  // Give the rule that was broken; empty: none.
  std::string close(std::byte* memory);
  std::string release(std::byte* memory);

  bool holds(const void* first, std::size_t bytes) const;
  std::size_t bytes_in_use() const;  // allocated, or open
  std::size_t opened() const;

 private:
  struct Header;
  struct Mapping {
    std::size_t bytes = 0;
    int file = -1;  // of what this process allocated
  };
  static Header& header_of(std::byte* memory);
  void forget(std::map<const std::byte*, Mapping>::iterator mapping);

  mutable std::mutex mutex_;
  std::map<const std::byte*, Mapping> mappings_;
  std::vector<std::pair<std::byte*, std::size_t>> past_;
};

}  // namespace stretto
