#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// The gradients that this rank has computed itself, as one vector, of all parameters on this rank whose gradients are summed
// over the same axes (ShardedParameters::keep_gradients_local). Parameters of which ranks along other axes hold copies, such
// as those of norms in tensor parallelism, have a vector of their own: its bits are the same on all ranks with copies, and
// so is all that is computed from the whole vector alone, such as the scales of quantized groups.
struct LocalGradients {
  struct Piece {                        // of one parameter: its slice
    std::size_t parameter = 0;          // index in Parameters::all()
    std::size_t unit = 0, member = 0;   // where the parameter lies
    std::int64_t first = 0, count = 0;  // elements of the vector
    bool counts = false;                // whether this rank is the first of those that hold copies of the sum
  };
  std::string name;    // of the vector, the same on all ranks that have it: "dp", "dp copies over tp"
  Communicator group;  // the ranks whose vectors have the step's gradients as their sum
  Tensor vector;       // of the accumulator type
  std::vector<Piece> pieces;
};

}  // namespace stretto
