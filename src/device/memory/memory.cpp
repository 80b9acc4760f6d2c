#include "device/memory/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "core/fail.hpp"
#include "stretto/tensor.hpp"

namespace stretto {
namespace {

// Sizes are rounded up by an eighth at most, so that requests of similar sizes can share blocks.
std::size_t rounded(std::size_t bytes) {
  std::size_t step = block_alignment;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

class Count {
 public:
  void add(std::size_t bytes) {
    const std::size_t now = bytes_.fetch_add(bytes) + bytes;
    std::size_t peak = peak_.load();
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  void remove(std::size_t bytes) { bytes_ -= bytes; }
  MemoryUse use() const { return {bytes_, peak_}; }

 private:
  std::atomic<std::size_t> bytes_ = 0;
  std::atomic<std::size_t> peak_ = 0;
};
Count of_all;
std::array<Count, 2> of_devices;
std::array<Count, memory_kinds> of_kinds;
Count& of(Device device) { return of_devices[static_cast<std::size_t>(device)]; }
Count& of(MemoryKind kind) { return of_kinds[static_cast<std::size_t>(kind)]; }

std::atomic<std::size_t> reserved = 0;

thread_local MemoryKind current_kind = MemoryKind::other;

class ProcessMemory final : public Pool {
  std::byte* fresh(std::size_t bytes) override {
    void* block = nullptr;
    if (posix_memalign(&block, bytes >= huge_page ? huge_page : block_alignment, bytes) != 0) {
      fail(ErrorCode::unavailable, "Cannot allocate {} bytes of memory.", bytes);
    }
    if (bytes >= huge_page) madvise(block, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(block);
  }
  void discard(std::byte* block, std::size_t /*bytes*/) override { std::free(block); }
};

}  // namespace

const char* name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::other: return "other";
    case MemoryKind::values: return "values";
    case MemoryKind::gradients: return "gradients";
    case MemoryKind::optimizer: return "optimizer";
    case MemoryKind::activations: return "activations";
    case MemoryKind::buffers: return "buffers";
  }
  return "unknown";
}

MemoryScope::MemoryScope(MemoryKind kind) : before_(current_kind) { current_kind = kind; }
MemoryScope::~MemoryScope() { current_kind = before_; }

CountedBytes::CountedBytes(std::size_t bytes, Device device) : bytes_(bytes), device_(device), kind_(current_kind) {}

void CountedBytes::add() const {
  of_all.add(bytes_);
  of(device_).add(bytes_);
  of(kind_).add(bytes_);
}

void CountedBytes::remove() const {
  of_all.remove(bytes_);
  of(device_).remove(bytes_);
  of(kind_).remove(bytes_);
}

std::shared_ptr<std::byte> Pool::allocate(std::size_t bytes) {
  const std::size_t size = rounded(std::max<std::size_t>(bytes, 1));
  std::byte* const block = take(size);
  const CountedBytes counted(bytes, Device::cpu);
  counted.add();
  return {block, [this, size, counted](std::byte* mine) {
            counted.remove();
            give_back(mine, size);
          }};
}

std::byte* Pool::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (auto& blocks = free_[bytes]; !blocks.empty()) {
    block = blocks.back();
    blocks.pop_back();
  } else {
    block = fresh(bytes);
    reserved += bytes;
  }
  return block;
}

void Pool::give_back(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
#if defined(STRETTO_SANITIZE)
  discard(block, bytes);
  reserved -= bytes;
#else
  free_[bytes].push_back(block);
#endif
}

std::shared_ptr<std::byte> pool_allocate(std::size_t bytes) {
  static ProcessMemory* const pool = new ProcessMemory;
  return pool->allocate(bytes);
}

MemoryUse memory_use() { return of_all.use(); }
MemoryUse memory_use(Device device) { return of(device).use(); }
std::size_t reserved_memory() { return reserved; }
MemoryUse memory_use(MemoryKind kind) { return of(kind).use(); }

}  // namespace stretto
