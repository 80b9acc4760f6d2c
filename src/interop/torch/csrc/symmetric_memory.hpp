#pragma once

namespace stretto_torch {

// Until it is left again as often as it was entered: what this thread makes of tensors on the CPU lies in the symmetric heap
// (stretto::allocate), where collectives of the ranks of a host work in place. Memory goes back there with its last tensor,
// whenever that is. Throws where another CPU allocator of PyTorch's insists on being the one.
void enter_symmetric_memory();
void leave_symmetric_memory();

}  // namespace stretto_torch
