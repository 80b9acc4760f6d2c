#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include "device/rehearsal_mode.hpp"
#include "stretto/stream.hpp"

namespace stretto {

struct KernelSpan {
  const char* kernel;
  double begin, end;  // as now_seconds()
};
// One that was put into a GPU's stream, whose times are known later: the places before and behind it there.
struct KernelOnGpu {
  const char* kernel;
  Work before, behind;
};
struct KernelNotes {
  std::vector<KernelSpan> spans;
  std::deque<KernelOnGpu> on_gpu;
  // Those to which the GPU has come become spans.
  void settle();
};
// Where this thread notes down what it computes; null: nowhere.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local KernelNotes* kernel_notes = nullptr;

// Stands in every kernel that computes with tensors, behind the checks of its arguments. (What collectives call computes
// with pointers: it belongs to communication.)
class KernelScope {
 public:
  explicit KernelScope(const char* kernel) : kernel_(kernel) {
    if (kernel_notes != nullptr) [[unlikely]]
      begin();
  }
  ~KernelScope() {
    if (begin_ > 0 || place_ > 0) [[unlikely]]
      end();
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  // Then the kernel returns at once and leaves its results as they are.
  bool skipped() const { return stretto::rehearsal_mode.skip_kernels; }

 private:
  void begin();
  void end() const;

  const char* kernel_;
  double begin_ = 0;
  std::size_t place_ = 0;  // among those on a GPU, counted from 1
};

// For work that counts as computation though it calls no kernel on tensors, such as copying a part of them.
template <class Work>
void as_kernel(const char* name, Work work) {
  const KernelScope scope(name);
  if (!scope.skipped()) work();
}

}  // namespace stretto
