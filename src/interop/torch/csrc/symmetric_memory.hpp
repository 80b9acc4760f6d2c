#pragma once

namespace stretto_torch {

// Between enter and leave, the CPU tensors that this thread makes lie in the symmetric heap (stretto::allocate), where
// collectives of the ranks of a host work in place. The calls nest. Memory returns to the heap with its last tensor, at any
// time. enter throws if another CPU allocator of PyTorch has priority.
void enter_symmetric_memory();
void leave_symmetric_memory();

}  // namespace stretto_torch
