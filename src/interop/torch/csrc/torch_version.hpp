#pragma once
#include <torch/version.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

// The differences between the versions of PyTorch that this door supports: 1.13 and 2.x.
namespace stretto_torch {

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;  // a process group has one for each kind of device
#else
using Base = c10d::ProcessGroup;
#endif

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using Tensors = std::vector<at::Tensor>;
using Milliseconds = std::chrono::milliseconds;
inline double seconds(Milliseconds time) { return std::chrono::duration<double>(time).count(); }

// The factor of ReduceOp.PREMUL_SUM, by which this rank's contribution is multiplied.
inline double premul_factor(const c10d::ReduceOp& op) {
  const auto* given = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(given != nullptr, "ReduceOp.PREMUL_SUM came without a factor; make it by _make_nccl_premul_sum.");
#if TORCH_VERSION_MAJOR >= 2
  return given->tensor_factor.defined() ? given->tensor_factor.item<double>() : given->double_factor;
#else
  return given->tensor_factors.empty() ? given->double_factor : given->tensor_factors.front().item<double>();
#endif
}

}  // namespace stretto_torch
