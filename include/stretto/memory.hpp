#pragma once
#include <cstddef>
#include <memory>

#include "stretto/export.hpp"

// The symmetric heap: memory that all ranks of the host reach (NVSHMEM's and NCCL's symmetric windows are the model).
namespace stretto {

// 64-byte aligned memory, from 2 MiB on aligned to that; the contents are unspecified. Collectives read and write such
// buffers of local peers in place; any other memory works too, only slower. Any rank may use it in any call, whole or in
// part, also where other ranks use ordinary memory: nothing has to be done collectively. The memory goes back to the heap
// with the last owner, and must not be used by operations that are not done by then. When an operation ended with an error
// because a rank was lost or gave up, other ranks may still read and write its buffers for a moment, until they notice:
// keep these until the job is taken down. A block is used again only for sizes of its own class (sizes are rounded up to
// multiples of 64 bytes, beyond 1 KiB by less than an eighth), and never goes back to the system. Safe from any thread. A
// fork()ed child keeps what it inherited, shared with its parent, and gets a heap of its own.
//
// One heap a process; STRETTO_HEAP_BYTES bounds the address space that it (and each peer's view of it) may take. Throws
// Error(unavailable) when that is used up, or the machine has not that much memory left.
STRETTO_API std::shared_ptr<std::byte> allocate(std::size_t bytes);

}  // namespace stretto
