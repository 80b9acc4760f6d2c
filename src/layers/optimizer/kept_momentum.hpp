#pragma once
#include <cstdint>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// A momentum that an all-reduce has brought to this rank, kept until the next step in as few bits as it travelled in: its
// groups have one magnitude each, so that in onebit nothing is lost.
class KeptMomentum {
 public:
  // Takes the memory of `elements` at once. `group` exchanges the momentum.
  KeptMomentum(QuantizedFormat format, const Communicator& group, std::int64_t elements, DType dtype);

  bool has_value() const { return has_value_; }
  void forget() { has_value_ = false; }
  void keep(const Tensor& momentum);
  // to += factor * momentum; a product is rounded before it is added.
  void add_to(const Tensor& to, double factor) const;

  // Bytes that it takes of a momentum of `elements` over so many ranks.
  static std::int64_t bytes(QuantizedFormat format, int ranks, std::int64_t elements, DType dtype);

 private:
  QuantizedFormat format_;
  std::vector<std::int64_t> shares_;  // elements, by rank: groups begin with a share
  Tensor kept_;                       // records of the shares, or the elements themselves
  bool has_value_ = false;
};

}  // namespace stretto
