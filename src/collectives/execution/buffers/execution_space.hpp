#pragma once
#include <cstddef>
#include <memory>

#include "stretto/dtype.hpp"

namespace stretto {

// Allocates a plan's own buffers and computes on them: in host memory by the calling thread, or on a GPU in the order of one
// stream.
class ExecutionSpace {
 public:
  virtual ~ExecutionSpace() = default;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) const = 0;
  virtual void convert(DType from, const void* x, DType to, void* out, std::int64_t count) const = 0;
  virtual void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) const = 0;
};

const ExecutionSpace& host_space();
const ExecutionSpace& symmetric_space();  // on the host, with buffers in the symmetric heap, which other ranks can reach

}  // namespace stretto
