#include "stand_in/host_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace stretto {
namespace {

constexpr std::size_t alignment = 256;
constexpr int poison_byte = 0xff;

std::size_t rounded(std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment; }

}  // namespace

HostMemory::~HostMemory() {
  for (const auto& [size, blocks] : unused_) {
    for (std::byte* const block : blocks) std::free(block);
  }
  for (const auto& [block, bytes] : in_use_) std::free(const_cast<std::byte*>(block));
}

std::byte* HostMemory::take(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (auto& blocks = unused_[size]; blocks.size() > 4) {
    block = blocks.front();
    blocks.pop_front();
  } else {
    block = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
    if (block == nullptr) throw std::bad_alloc();
  }
  in_use_[block] = bytes;
  return block;
}

std::size_t HostMemory::forget(std::byte* block) {
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(block);
  if (found == in_use_.end()) return 0;
  const std::size_t bytes = found->second;
  in_use_.erase(found);
  return bytes;
}

void HostMemory::give_back(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  unused_[rounded(bytes)].push_back(block);
}

bool HostMemory::holds(const void* first, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(first);
  const std::lock_guard lock(mutex_);
  auto next = in_use_.upper_bound(begin);
  if (next == in_use_.begin()) return false;
  const auto& [block, size] = *--next;
  return begin + bytes <= block + std::max<std::size_t>(size, 1) && begin < block + std::max<std::size_t>(size, 1);
}

std::size_t HostMemory::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [block, bytes] : in_use_) sum += bytes;
  return sum;
}

void HostMemory::poison(std::byte* block, std::size_t bytes) { std::memset(block, poison_byte, bytes); }

}  // namespace stretto
