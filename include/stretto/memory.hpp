#pragma once
#include <cstddef>
#include <memory>

#include "stretto/export.hpp"

// The symmetric heap: memory that all ranks of a host can read and write, like NVSHMEM's symmetric heap and NCCL's
// symmetric windows.
namespace stretto {

// Returns `bytes` bytes of the symmetric heap, aligned to 64 bytes, or to 2 MiB if `bytes` is at least 2 MiB. The
// contents are unspecified. Any thread may call this function.
//
// Ranks on the same host read and write each other's symmetric buffers directly in a collective. Ordinary memory works
// too, but is slower. A rank may pass any part of its symmetric memory to any call, even if other ranks pass ordinary
// memory. No buffer has to be registered.
//
// When the last shared_ptr to a block is destroyed, the block returns to the heap; no operation may still use the block
// then. If an operation failed because a rank was lost or gave up, other ranks may still read and write the operation's
// buffers for a moment: keep such buffers until the whole job has ended.
//
// Sizes are rounded up to a size class: to a multiple of 64 bytes, and above 1 KiB by less than an eighth. A free block
// is reused only for requests of the same size class. Blocks are never returned to the operating system. A fork()ed
// child shares the inherited blocks with its parent, and allocates new blocks from a heap of its own.
//
// There is one heap per process. STRETTO_HEAP_BYTES is the address space that the process reserves for its heap, and for
// its mapping of each peer's heap. Throws Error(unavailable) if this address space or the machine's memory is used up.
STRETTO_API std::shared_ptr<std::byte> allocate(std::size_t bytes);

}  // namespace stretto
