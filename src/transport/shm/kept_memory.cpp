#include "transport/shm/kept_memory.hpp"

#include "stretto/memory.hpp"

namespace stretto {

std::byte* KeptMemory::next(std::size_t bytes) {
  turn_ = turn_of(bytes);
  Part& part = parts_[turn_];
  if (bytes > part.bytes) {
    part.memory = nullptr;
    part.bytes = 0;
    part.memory = allocate(bytes);
    part.bytes = bytes;
  }
  return part.memory.get();
}

std::vector<std::shared_ptr<std::byte>> KeptMemory::release() {
  std::vector<std::shared_ptr<std::byte>> all;
  for (Part& part : parts_) {
    if (part.memory) all.push_back(std::move(part.memory));
    part = {};
  }
  return all;
}

}  // namespace stretto
