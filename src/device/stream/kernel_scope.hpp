#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include "device/rehearsal_mode.hpp"
#include "stretto/stream.hpp"

namespace stretto {

struct KernelSpan {
  const char* kernel;
  double begin, end;      // on the clock of now_seconds()
  double operations = 0;  // of a matrix product
};
// A kernel that was put into a GPU's stream. Its times become known later, from the places before and after it there.
struct KernelOnGpu {
  const char* kernel;
  double operations;
  Work before, behind;
};
struct KernelNotes {
  std::vector<KernelSpan> spans;
  std::deque<KernelOnGpu> on_gpu;
  // Turns kernels that the GPU has passed into spans.
  void settle();
};
// Records the kernels that this thread computes; null: they are not recorded.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local KernelNotes* kernel_notes = nullptr;

// Every kernel on tensors has one, after the checks of its arguments. (Kernels on pointers have none: collectives call them,
// and their time counts as communication.)
class KernelScope {
 public:
  // operations: floating-point operations of a matrix product.
  explicit KernelScope(const char* kernel, double operations = 0) : kernel_(kernel), operations_(operations) {
    if (kernel_notes != nullptr) [[unlikely]]
      begin();
  }
  ~KernelScope() {
    if (begin_ > 0 || place_ > 0) [[unlikely]]
      end();
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  // If true, the kernel must return at once and leave its results as they are.
  bool skipped() const { return stretto::rehearsal_mode.skip_kernels; }

 private:
  void begin();
  void end() const;

  const char* kernel_;
  double operations_;
  double begin_ = 0;
  std::size_t place_ = 0;  // number among the kernels on a GPU, counted from 1
};

// Runs work that counts as computation although it calls no kernel on tensors, such as copying a part of one.
template <class Work>
void as_kernel(const char* name, Work work) {
  const KernelScope scope(name);
  if (!scope.skipped()) work();
}

}  // namespace stretto
