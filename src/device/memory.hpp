#pragma once
#include <cstddef>
#include <memory>

namespace stretto {

// 64-byte aligned memory from a pool of blocks that were given back: fresh pages cost a fault each, and a training step
// asks for the same sizes again and again. Safe from any thread. The block returns to the pool with its last owner.
std::shared_ptr<std::byte> pool_allocate(std::size_t bytes);

}  // namespace stretto
