#pragma once
#include <optional>

#include "stretto/communicator.hpp"
#include "torch_version.hpp"

namespace stretto_torch {

// The operation that combines elements of a tensor. Stretto has no arithmetic for some cases (bitwise operations, 16-bit
// integers). The contributions then travel unchanged, and every rank that gets a result combines them by PyTorch, in the
// order of the ranks.
struct Reduction {
  c10d::ReduceOp::RedOpType kind = c10d::ReduceOp::SUM;
  bool by_torch = false;
  stretto::DType dtype = stretto::DType::f32;
  stretto::ReduceOp op = stretto::ReduceOp::sum;
  double factor = 1;
};
// Throws if the type or the operation has no sums here. what: the name of the calling operation, for the error.
Reduction reduction_of(const char* what, at::ScalarType type, const c10d::ReduceOp& op);

// The type of Stretto that has the same elements and arithmetic, if there is one.
std::optional<stretto::DType> dtype_of(at::ScalarType type);

// Combines `contributions`, one row for each rank, into `result`.
void combine(const Reduction& how, const at::Tensor& contributions, const at::Tensor& result);

// Throws unless the tensor is sparse (COO), on the CPU, and the operation SUM.
void check_sparse(const char* what, const at::Tensor& tensor, const c10d::ReduceOp& op);

// Replaces a sparse tensor by the sum over all ranks, coalesced: the elements of all ranks go to every rank, which adds
// them. All ranks get the same bits.
void all_reduce_sparse(const stretto::Communicator& world, const at::Tensor& tensor, const stretto::Stream& stream);

}  // namespace stretto_torch
