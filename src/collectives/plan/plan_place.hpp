#pragma once
#include <cstddef>
#include <memory>

#include "collectives/execution/local_work.hpp"

namespace stretto {

// Where a plan's own buffers lie, and what computes on them: this thread in host memory, or a GPU's stream.
class PlanPlace {
 public:
  virtual ~PlanPlace() = default;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) const = 0;
  virtual void convert(DType from, const void* x, DType to, void* out, std::int64_t count) const = 0;
  virtual void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) const = 0;
};

const PlanPlace& host_place();
const PlanPlace& symmetric_place();  // the same with buffers that the other ranks of the host reach

}  // namespace stretto
