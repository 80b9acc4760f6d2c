#include "collectives/plan/plan_place.hpp"

#include "device/memory/memory.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

class HostPlace final : public PlanPlace {
 public:
  using Allocate = std::shared_ptr<std::byte> (*)(std::size_t bytes);
  explicit HostPlace(Allocate allocator) : allocator_(allocator) {}
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override { return allocator_(bytes); }
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

const PlanPlace& host_place() {
  static const HostPlace place(pool_allocate);
  return place;
}

const PlanPlace& symmetric_place() {
  static const HostPlace place(stretto::allocate);
  return place;
}

}  // namespace stretto
