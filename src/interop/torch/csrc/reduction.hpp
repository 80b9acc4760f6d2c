#pragma once
#include <optional>

#include "stretto/communicator.hpp"
#include "torch_version.hpp"

namespace stretto_torch {

// How elements of a tensor combine. Of what Stretto has no arithmetic for (bitwise operations, 16-bit integers), the
// contributions travel as they are, and every rank that gets a result combines them by PyTorch, in the order of the ranks.
struct Reduction {
  c10d::ReduceOp::RedOpType kind = c10d::ReduceOp::SUM;
  bool by_torch = false;
  stretto::DType dtype = stretto::DType::f32;
  stretto::ReduceOp op = stretto::ReduceOp::sum;
  double factor = 1;
};
// Throws for a type or an operation that has no sums here. what: the operation, for the sentence.
Reduction reduction_of(const char* what, at::ScalarType type, const c10d::ReduceOp& op);

// The type of Stretto's that has the same elements and arithmetic, if there is one.
std::optional<stretto::DType> dtype_of(at::ScalarType type);

// contributions: the ranks' ones, as rows; result gets what becomes of them.
void combine(const Reduction& how, const at::Tensor& contributions, const at::Tensor& result);

}  // namespace stretto_torch
