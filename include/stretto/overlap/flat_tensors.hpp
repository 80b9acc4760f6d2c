#pragma once
#include <cstddef>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

// count elements of one of several tensors, from the given one on.
struct ElementRange {
  std::size_t tensor = 0;  // its place in the list of tensors
  std::int64_t first = 0, count = 0;
  bool operator==(const ElementRange&) const = default;
};

// Several tensors as one vector, one behind the other: what travels as one message. Where they are neighbours in memory, in
// the order given, the vector is that memory itself; elsewhere it is a copy in the symmetric heap, to be packed and unpacked
// at the speed of memory. Ranks may differ in that: the vector has the same elements in the same places.
class STRETTO_API FlatTensors {
 public:
  // Of one type; at least one.
  explicit FlatTensors(std::vector<Tensor> members);

  const Tensor& flat() const { return flat_; }
  bool in_place() const { return in_place_; }
  // Between the members and this part of the vector; nothing to do where it is their memory.
  void pack(std::int64_t first, std::int64_t count) const;
  void unpack(std::int64_t first, std::int64_t count) const;
  // The elements of the members that this part of the vector holds; none that are empty.
  std::vector<ElementRange> ranges(std::int64_t first, std::int64_t count) const;

 private:
  std::vector<Tensor> members_;
  Tensor flat_;
  bool in_place_ = true;
};

}  // namespace stretto
