#include "collectives/execution/buffers/execution_space.hpp"

#include "device/memory/memory.hpp"
#include "stretto/kernels.hpp"
#include "stretto/memory.hpp"
#include "stretto/tensor.hpp"

namespace stretto {
namespace {

class HostSpace final : public ExecutionSpace {
 public:
  using Allocate = std::shared_ptr<std::byte> (*)(std::size_t bytes);
  explicit HostSpace(Allocate allocator) : allocator_(allocator) {}
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    const MemoryScope buffers(MemoryKind::buffers);
    return allocator_(bytes);
  }
  void convert(DType from, const void* x, DType to, void* out, std::int64_t count) const override {
    kernels::convert(from, x, to, out, count);
  }
  void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) const override {
    kernels::multiply(dtype, x, out, count, factor);
  }

 private:
  Allocate allocator_;
};

}  // namespace

const ExecutionSpace& host_space() {
  static const HostSpace space(pool_allocate);
  return space;
}

const ExecutionSpace& symmetric_space() {
  static const HostSpace space(stretto::allocate);
  return space;
}

}  // namespace stretto
