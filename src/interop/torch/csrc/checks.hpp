#pragma once
#include <ATen/MemoryOverlap.h>

#include "torch_version.hpp"

// Checks by which one rank alone can refuse a call. what: the name of the operation.
namespace stretto_torch {

inline void check_tensor(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "ProcessGroupStretto::", what, ": a tensor is undefined.");
  TORCH_CHECK(tensor.layout() == at::kStrided, "ProcessGroupStretto::", what,
              ": only supports dense tensors, and got one of ", tensor.layout(), "; convert it by to_dense().");
  TORCH_CHECK(tensor.device().is_cpu(), "ProcessGroupStretto::", what, ": only supports tensors on the CPU, and got one on ",
              tensor.device(), ".");
}

inline void check_tensors(const char* what, const Tensors& tensors) {
  TORCH_CHECK(!tensors.empty(), "ProcessGroupStretto::", what, ": requires a non-empty tensor list.");
  for (const at::Tensor& tensor : tensors) {
    check_tensor(what, tensor);
    TORCH_CHECK(tensor.scalar_type() == tensors.front().scalar_type(), "ProcessGroupStretto::", what,
                ": the tensors are of ", tensors.front().scalar_type(), " and of ", tensor.scalar_type(),
                "; give all of them one type.");
  }
}

inline const at::Tensor& single(const char* what, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "ProcessGroupStretto::", what, ": takes one tensor for this rank, and got ",
              tensors.size(), ".");
  check_tensor(what, tensors.front());
  return tensors.front();
}

// Refuses an input and an output that share memory. Tensors that are not contiguous may: they are copied.
inline void check_apart(const char* what, const at::Tensor& one, const at::Tensor& other) {
  const bool apart = one.numel() == 0 || other.numel() == 0 || !one.is_contiguous() || !other.is_contiguous() ||
                     at::get_overlap_status(one, other) == at::MemOverlapStatus::No;
  TORCH_CHECK(apart, "ProcessGroupStretto::", what, ": an input and an output, of ", one.numel(), " and ", other.numel(),
              " elements of ", one.scalar_type(),
              ", share memory, which this operation cannot do; give an output of its own.");
}

// Refuses outputs whose elements share memory: an operation writes outputs in their own layout, at the latest when it ends.
inline void check_written(const char* what, const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    const bool shares = output.layout() == at::kStrided && at::has_internal_overlap(output) == at::MemOverlap::Yes;
    TORCH_CHECK(!shares, what, ": elements of an output of sizes ", output.sizes(), " and strides ", output.strides(),
                " share memory; give a tensor whose elements do not, such as its clone().");
  }
}

}  // namespace stretto_torch
