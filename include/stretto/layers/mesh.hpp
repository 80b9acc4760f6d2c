#pragma once
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto {

// The axes along which the work is divided over ranks.
enum class Axis : std::uint8_t {
  data,    // the ranks hold the same parameters and see different sequences
  tensor,  // the ranks hold parts of each layer and see the same sequences
};
STRETTO_API const char* name(Axis axis);

// The ranks of a job as a data x tensor grid. Neighbouring ranks are in the same tensor group, since tensor groups
// communicate most: rank = data_rank * tensor_size + tensor_rank.
struct STRETTO_API Mesh {
  Communicator world;
  Communicator data;  // this rank's group along the data axis; `tensor` is that along the tensor axis
  Communicator tensor;

  // Collective. Throws Error(invalid_argument) unless the product of the two sizes is the number of ranks.
  static Mesh create(const Communicator& world, int data_size, int tensor_size);
  const Communicator& along(Axis axis) const { return axis == Axis::data ? data : tensor; }
};

}  // namespace stretto
