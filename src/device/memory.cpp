#include "device/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/fail.hpp"
#include "stretto/tensor.hpp"

namespace stretto {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

// Sizes are rounded up in steps of an eighth, so that slightly different requests can share blocks.
std::size_t rounded(std::size_t bytes) {
  std::size_t step = alignment;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

class Pool {
 public:
  std::byte* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.bytes += bytes;
    use_.peak_bytes = std::max(use_.peak_bytes, use_.bytes);
    auto& blocks = free_[bytes];
    if (!blocks.empty()) {
      std::byte* block = blocks.back();
      blocks.pop_back();
      return block;
    }
    void* block = nullptr;
    if (posix_memalign(&block, bytes >= huge_page ? huge_page : alignment, bytes) != 0) {
      use_.bytes -= bytes;
      fail(ErrorCode::unavailable, "Cannot allocate {} bytes of memory.", bytes);
    }
    if (bytes >= huge_page) madvise(block, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(block);
  }

  void give_back(std::byte* block, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.bytes -= bytes;
#if defined(STRETTO_SANITIZE)  // a pool would hide uses after the end of a block's life
    std::free(block);
#else
    free_[bytes].push_back(block);
#endif
  }

  MemoryUse use() {
    const std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<std::byte*>> free_;
  MemoryUse use_;
};

// Never destroyed: tensors in static storage may outlive any order of destruction.
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

}  // namespace

std::shared_ptr<std::byte> pool_allocate(std::size_t bytes) {
  const std::size_t size = rounded(std::max<std::size_t>(bytes, 1));
  return {pool().take(size), [size](std::byte* block) { pool().give_back(block, size); }};
}

MemoryUse memory_use() { return pool().use(); }

}  // namespace stretto
