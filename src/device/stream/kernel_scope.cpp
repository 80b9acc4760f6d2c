#include "device/stream/kernel_scope.hpp"

#include "device/stream/graph_recording.hpp"
#include "stretto/device.hpp"

namespace stretto {

void KernelNotes::settle() {
  while (!on_gpu.empty() && on_gpu.front().behind.done()) {
    const KernelOnGpu& first = on_gpu.front();
    spans.push_back({first.kernel, first.before.times().done, first.behind.times().started, first.operations});
    on_gpu.pop_front();
  }
}

void KernelScope::begin() {
  if (current_device() == Device::cpu) {
    begin_ = now_seconds();
  } else if (recording == nullptr) {  // a kernel in a graph has no time of its own
    kernel_notes->on_gpu.push_back({kernel_, operations_, computation().enqueue([] {}), {}});
    place_ = kernel_notes->on_gpu.size();
  }
}

void KernelScope::end() const {
  if (kernel_notes == nullptr) return;
  if (place_ > 0) {
    kernel_notes->on_gpu[place_ - 1].behind = computation().enqueue([] {});
  } else {
    kernel_notes->spans.push_back({kernel_, begin_, now_seconds(), operations_});
  }
}

}  // namespace stretto
