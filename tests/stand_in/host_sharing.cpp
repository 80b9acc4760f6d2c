#include "stand_in/host_sharing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/fail.hpp"
#include "device/memory/shared_file.hpp"

namespace stretto {
namespace {

constexpr std::size_t page = 4096;

struct Handle {
  pid_t process;
  int file;
  std::uint64_t bytes, number;
};

std::byte* mapped(int file, std::size_t bytes) {
  void* const start = mmap(nullptr, page + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (start == MAP_FAILED) fail(ErrorCode::unavailable, "Cannot map {} bytes: {}.", bytes, errno_text(errno));
  return static_cast<std::byte*>(start) + page;
}

void unmap(std::byte* memory, std::size_t bytes) { munmap(memory - page, page + bytes); }

}  // namespace

struct HostSharing::Header {          // in the page before the memory
  std::atomic<std::uint64_t> number;  // unique, while file descriptors are reused
  std::atomic<int> opened;            // the number of openings by all processes
};

HostSharing::Header& HostSharing::header_of(std::byte* memory) { return *reinterpret_cast<Header*>(memory - page); }

HostSharing::~HostSharing() {
  while (!mappings_.empty()) forget(mappings_.begin());
  for (const auto& [memory, bytes] : past_) unmap(memory, bytes);
}

void HostSharing::forget(std::map<const std::byte*, Mapping>::iterator mapping) {
  if (mapping->second.file >= 0) ::close(mapping->second.file);
  past_.emplace_back(const_cast<std::byte*>(mapping->first), mapping->second.bytes);
  mappings_.erase(mapping);
}

GpuSharedMemory HostSharing::allocate(std::size_t bytes) {
  static std::atomic<std::uint64_t> last = 0;
  const Handle handle{getpid(), open_nameless_file(), bytes, ++last};
  GpuSharedMemory shared;
  ensure(ftruncate(handle.file, static_cast<off_t>(page + bytes)) == 0, "A nameless file does not grow to {} bytes.", bytes);
  shared.memory = mapped(handle.file, bytes);
  header_of(shared.memory).number = handle.number;
  std::memcpy(shared.handle.data(), &handle, sizeof handle);
  const std::lock_guard lock(mutex_);
  mappings_[shared.memory] = {bytes, handle.file};
  return shared;
}

std::byte* HostSharing::open(const GpuShareHandle& from, std::string& broken_rule) {
  Handle handle{};
  std::memcpy(&handle, from.data(), sizeof handle);
  if (handle.process == getpid()) {
    broken_rule = "open_shared got a handle of this process, where CUDA does not open it.";
    return nullptr;
  }
  const int file = ::open(fmt::format("/proc/{}/fd/{}", handle.process, handle.file).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    fail(ErrorCode::unavailable, "Process {} has no such memory to open: {}.", handle.process, errno_text(errno));
  }
  std::byte* memory = nullptr;
  try {
    memory = mapped(file, handle.bytes);
  } catch (...) {
    ::close(file);
    throw;
  }
  ::close(file);
  if (header_of(memory).number != handle.number) {
    unmap(memory, handle.bytes);
    fail(ErrorCode::unavailable, "Process {} has released the memory of this handle.", handle.process);
  }
  ++header_of(memory).opened;
  const std::lock_guard lock(mutex_);
  mappings_[memory] = {handle.bytes};
  return memory;
}

std::string HostSharing::close(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(memory);
  if (found == mappings_.end() || found->second.file >= 0) return "close_shared got memory that is not open.";
  --header_of(memory).opened;
  forget(found);
  return "";
}

std::string HostSharing::release(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(memory);
  if (found == mappings_.end() || found->second.file < 0) {
    return "release_shared got memory that was not allocated to be shared, or was released.";
  }
  const int opened = header_of(memory).opened;
  forget(found);
  return opened == 0 ? "" : fmt::format("release_shared got memory that others have open {} times.", opened);
}

bool HostSharing::holds(const void* first, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(first);
  const std::lock_guard lock(mutex_);
  auto next = mappings_.upper_bound(begin);
  if (next == mappings_.begin()) return false;
  const auto& [memory, mapping] = *--next;
  return begin < memory + mapping.bytes && begin + bytes <= memory + mapping.bytes;
}

std::size_t HostSharing::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [memory, mapping] : mappings_) sum += mapping.bytes;
  return sum;
}

std::size_t HostSharing::opened() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [memory, mapping] : mappings_) count += mapping.file < 0 ? 1 : 0;
  return count;
}

}  // namespace stretto
