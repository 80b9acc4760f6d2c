#pragma once
#include <cstddef>
#include <memory>

#include "stretto/export.hpp"

// The symmetric heap: memory that all ranks of a host can read and write, like NVSHMEM's and NCCL's symmetric windows.
namespace stretto {

// Returns memory from the symmetric heap, aligned to 64 bytes, or to 2 MiB if it has 2 MiB or more. The contents are
// unspecified. Any thread may call it.
//
// Collectives read and write such buffers of ranks on the same host in place. Any other memory works too, only slower.
// Any rank may use any part of it in any call, even if other ranks use ordinary memory; nothing needs to be registered.
//
// The memory goes back to the heap when its last owner goes; no operation may still use it then. If an operation failed
// because a rank was lost or gave up, other ranks may still read and write its buffers for a moment: keep the memory
// until the whole job has ended. A block is reused only for sizes of its own class: sizes are rounded up to multiples of
// 64 bytes, above 1 KiB by less than an eighth. Blocks never go back to the system. A fork()ed child shares the inherited
// blocks with its parent, and gets its own heap for new ones.
//
// There is one heap per process. STRETTO_HEAP_BYTES limits the address space of the heap, and of each peer's mapping of
// it. Throws Error(unavailable) if that or the machine's memory is used up.
STRETTO_API std::shared_ptr<std::byte> allocate(std::size_t bytes);

}  // namespace stretto
