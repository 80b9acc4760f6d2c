#pragma once
#include "checks.hpp"
#include "stretto/communicator.hpp"

namespace stretto_torch {

void check_sparse(const char* what, const at::Tensor& tensor, const c10d::ReduceOp& op);

// Replaces a sparse tensor (COO) by the sum over all ranks, coalesced: the elements of all ranks go to every rank, which
// adds them. All ranks get the same bits.
void all_reduce_sparse(const stretto::Communicator& world, const at::Tensor& tensor, const stretto::Stream& stream);

}  // namespace stretto_torch
