#include "transport/gpu/gpu_exports.hpp"

#include <algorithm>

namespace stretto {

GpuExports::~GpuExports() {
  for (const Region& region : regions_) region.gpu->release_shared(region.shared.memory);
}

GpuSharedMemory GpuExports::take(Gpu& gpu, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
    return region.is_free && region.gpu == &gpu && region.bytes >= bytes;
  });
  if (found != regions_.end()) {
    found->is_free = false;
    return found->shared;
  }
  regions_.push_back({&gpu, gpu.allocate_shared(bytes), bytes, false});
  return regions_.back().shared;
}

std::vector<GpuExports::Region>::iterator GpuExports::find(const std::byte* memory) {
  return std::find_if(regions_.begin(), regions_.end(),
                      [&](const Region& region) { return region.shared.memory == memory; });
}

void GpuExports::give_back(const std::byte* memory) {
  const std::lock_guard lock(mutex_);
  find(memory)->is_free = true;
}

void GpuExports::release(const std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto region = find(memory);
  region->gpu->release_shared(region->shared.memory);
  regions_.erase(region);
}

}  // namespace stretto
