#pragma once
#include "stretto/kernels.hpp"
#include "stretto/plan.hpp"

namespace stretto {

// A step that needs no peer, done in parts: a long one must not keep the links from being served. Parts are cut at whole
// groups, so that the cut changes no bit of the result.
struct LocalWork {
  StepKind kind = StepKind::copy;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::int64_t count = 0;  // elements of the destination
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t divisor = 1;
  int vectors = 1;            // that lie in the source ...
  std::int64_t distance = 0;  // ... so many bytes from one to the next
  // Of what is packed, and how the destination is.
  QuantizedFormat source_format = QuantizedFormat::none;
  QuantizedFormat destination_format = QuantizedFormat::none;
  kernels::QuantizeOptions quantizing = {};  // of the first element

  std::int64_t done = 0;  // elements
  bool complete() const { return done == count; }
  // Of all elements that are read.
  std::size_t bytes() const { return static_cast<std::size_t>(count * vectors) * size_of(dtype); }
  // Does what it can within so many bytes of elements read, though one group at least. Returns how many those were.
  std::size_t advance(std::size_t bytes);

 private:
  void compute(const std::byte* from, std::byte* to, std::int64_t elements) const;
};

}  // namespace stretto
