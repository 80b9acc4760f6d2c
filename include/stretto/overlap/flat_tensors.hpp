#pragma once
#include <cstddef>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

// `count` elements of one tensor of a list, from element `first` on.
struct ElementRange {
  std::size_t tensor = 0;  // index in the list
  std::int64_t first = 0, count = 0;
  bool operator==(const ElementRange&) const = default;
};

// Several tensors as one vector, one after the other, so that they travel as one message. If they are neighbours in
// memory, in the order given, the vector is that memory itself. Otherwise it is a copy in the symmetric heap, which
// pack() and unpack() fill and read at the speed of memory. On all ranks the vector has the same elements in the same
// places, even if it is a copy on some ranks only.
class STRETTO_API FlatTensors {
 public:
  // At least one tensor; all must have the same element type.
  explicit FlatTensors(std::vector<Tensor> members);

  const Tensor& flat() const { return flat_; }
  bool in_place() const { return in_place_; }
  // Copy this part of the vector from or to the members; no effect if the vector is their memory.
  void pack(std::int64_t first, std::int64_t count) const;
  void unpack(std::int64_t first, std::int64_t count) const;
  // The elements of members that lie in this part of the vector. No range is empty.
  std::vector<ElementRange> ranges(std::int64_t first, std::int64_t count) const;

 private:
  std::vector<Tensor> members_;
  Tensor flat_;
  bool in_place_ = true;
};

}  // namespace stretto
