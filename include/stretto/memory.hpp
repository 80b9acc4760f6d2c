#pragma once
#include <cstddef>
#include <memory>

#include "stretto/export.hpp"

// The symmetric heap: memory that all ranks of the host reach (NVSHMEM's and NCCL's symmetric windows are the model).
namespace stretto {

// 64-byte aligned memory, from 2 MiB on aligned to that; the contents are unspecified. Collectives read and write such
// buffers of local peers in place; any other memory works too, only slower. Any rank may use it in any call, whole or in
// part, also where other ranks use ordinary memory: nothing has to be done collectively. The memory goes back with the last
// owner, and must not be used by operations that are not done by then. Safe from any thread. A fork()ed child keeps what it
// inherited as ordinary shared memory and gets a heap of its own.
//
// One heap a process; STRETTO_HEAP_BYTES bounds the address space that it (and each peer's view of it) may take. Throws
// Error(unavailable) when the machine has not that much memory left.
STRETTO_API std::shared_ptr<std::byte> allocate(std::size_t bytes);

}  // namespace stretto
