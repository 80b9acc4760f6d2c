#pragma once
#include "device/cpu/host_kernels.hpp"
#include "stretto/tensor.hpp"

namespace stretto::kernels::cpu {

// A gradient in the accumulator type, for a kernel that adds to it many times: the tensor itself, or an f32 copy of a 16-bit
// tensor, to which it is rounded at the end.
class WideGradient {
 public:
  explicit WideGradient(const Tensor& gradient) : gradient_(gradient), wide_(gradient) {
    if (!is_narrow(gradient.dtype())) return;
    const MemoryScope scratch(MemoryKind::other);
    wide_ = Tensor(gradient.shape(), DType::f32, Device::cpu);
    copy(gradient_, wide_);
  }
  ~WideGradient() {
    if (is_narrow(gradient_.dtype())) copy(wide_, gradient_);
  }
  WideGradient(const WideGradient&) = delete;
  WideGradient& operator=(const WideGradient&) = delete;

  const Tensor& tensor() const { return wide_; }

 private:
  static void copy(const Tensor& from, const Tensor& to) {
    convert(from.dtype(), from.raw(), to.dtype(), to.raw(), from.size());
  }

  Tensor gradient_, wide_;
};

}  // namespace stretto::kernels::cpu
