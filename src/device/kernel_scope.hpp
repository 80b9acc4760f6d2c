#pragma once
#include <vector>

#include "core/left_out.hpp"
#include "stretto/stream.hpp"

namespace stretto {

struct KernelSpan {
  const char* kernel;
  double begin, end;  // as now_seconds()
};
// Where this thread notes down what it computes; null: nowhere.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local std::vector<KernelSpan>* kernel_spans = nullptr;

// Stands in every kernel that computes with tensors, behind the checks of its arguments. (What collectives call computes
// with pointers: it belongs to communication.)
class KernelScope {
 public:
  explicit KernelScope(const char* kernel) : kernel_(kernel) {
    if (kernel_spans != nullptr) [[unlikely]]
      begin_ = now_seconds();
  }
  ~KernelScope() {
    if (begin_ > 0) [[unlikely]]
      kernel_spans->push_back({kernel_, begin_, now_seconds()});
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  // Then the kernel returns at once and leaves its results as they are.
  bool left_out() const { return stretto::left_out.kernels; }

 private:
  const char* kernel_;
  double begin_ = 0;
};

// For work that counts as computation though it calls no kernel on tensors, such as copying a part of them.
template <class Work>
void as_kernel(const char* name, Work work) {
  const KernelScope scope(name);
  if (!scope.left_out()) work();
}

}  // namespace stretto
