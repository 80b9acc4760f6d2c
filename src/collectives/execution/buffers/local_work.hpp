#pragma once
#include "stretto/kernels.hpp"
#include "stretto/plan.hpp"

namespace stretto {

// A step that needs no peer. It is done in parts, because a long step would keep the thread from serving the links. Parts
// begin and end at whole groups, so that the parts change no bit of the result.
struct LocalWork {
  StepKind kind = StepKind::copy;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::int64_t count = 0;  // elements of the destination
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t divisor = 1;
  int vectors = 1;            // number of vectors in the source
  std::int64_t distance = 0;  // bytes from one vector to the next
  // Formats of packed elements; QuantizedFormat::none for plain elements.
  QuantizedFormat source_format = QuantizedFormat::none;
  QuantizedFormat destination_format = QuantizedFormat::none;
  kernels::QuantizeOptions quantizing = {};  // for the first element

  std::int64_t done = 0;  // elements of the destination
  bool complete() const { return done == count; }
  // Bytes of all elements that are read.
  std::size_t bytes() const { return static_cast<std::size_t>(count * vectors) * size_of(dtype); }
  // Does a part that reads at most this many bytes of elements, but at least one group. Returns the bytes read.
  std::size_t advance(std::size_t bytes);

 private:
  void compute(const std::byte* from, std::byte* to, std::int64_t elements) const;
};

}  // namespace stretto
