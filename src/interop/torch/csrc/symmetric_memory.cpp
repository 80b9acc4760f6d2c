#include "symmetric_memory.hpp"

#include <c10/core/CPUAllocator.h>

#include <stretto/memory.hpp>

#include "torch_version.hpp"

namespace stretto_torch {
namespace {

thread_local int entered = 0;

// PyTorch has one allocator for all tensors on the CPU. This one takes its place, and forwards the requests of threads that
// are not in symmetric memory.
class SymmetricFirst : public c10::Allocator {
 public:
  explicit SymmetricFirst(c10::Allocator* next) : next_(next) {}

#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(size_t bytes) override { return make(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
#else
  c10::DataPtr allocate(size_t bytes) const override { return make(bytes); }
#endif
  // Raw memory is freed by its address alone, so it never comes from the symmetric heap. The next allocator's deleter frees
  // it.
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }

 private:
  c10::DataPtr make(size_t bytes) const {
    if (entered == 0 || bytes == 0) return next_->allocate(bytes);
    auto* const owner = new std::shared_ptr<std::byte>(stretto::allocate(bytes));
    return {owner->get(), owner, [](void* each) { delete static_cast<std::shared_ptr<std::byte>*>(each); },
            c10::Device(c10::DeviceType::CPU)};
  }

  c10::Allocator* next_;
};

}  // namespace

void enter_symmetric_memory() {
  // Never destroyed: tensors may outlive everything else.
  static auto* const first = [] {
    auto* const made = new SymmetricFirst(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made);
    return made;
  }();
  TORCH_CHECK(
      c10::GetCPUAllocator() == first,
      "Tensors cannot be put into symmetric memory: another CPU allocator was given to PyTorch with a higher priority.");
  ++entered;
}

void leave_symmetric_memory() { --entered; }

}  // namespace stretto_torch
