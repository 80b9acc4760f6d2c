#include <cstdlib>
#include <new>

#include "stretto/memory.hpp"

namespace stretto {

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, [](std::byte* block) { std::free(block); }};
}

}  // namespace stretto
