#pragma once
#include <type_traits>

#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto::kernels {

// Null for an argument that is no tensor.
inline const Tensor* tensor_in(const Tensor& argument) { return &argument; }
inline const Tensor* tensor_in(const TokenHeads& argument) { return &argument.tensor; }
template <class Other>
const Tensor* tensor_in(const Other& /*argument*/) {
  return nullptr;
}

// Computes in this thread, or puts the kernel into the GPU's stream if its tensors are in GPU memory. Called behind the
// checks of the arguments.
template <class... Parameters>
void run_kernel(const char* kernel, void (*on_host)(Parameters...),
                std::type_identity_t<void (GpuKernels::*)(Parameters..., GpuStream)> there,
                std::type_identity_t<Parameters>... arguments) {
  const KernelScope scope(kernel);
  if (scope.skipped()) return;
  const Tensor* first = nullptr;
  bool is_there = false;
  const auto look = [&](const Tensor* tensor) {
    if (tensor == nullptr) return;
    if (first == nullptr) first = tensor;
    is_there = on_gpu(kernel, *first, *tensor);
  };
  (look(tensor_in(arguments)), ...);
  if (is_there) return (gpu().kernels().*there)(arguments..., gpu_stream());
  on_host(arguments...);
}

}  // namespace stretto::kernels
