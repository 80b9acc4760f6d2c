#pragma once
#include "stretto/communicator.hpp"

namespace apps {

// FLOP/s of one rank's matrix products in the training type while all ranks do the same, on a GPU by its own clock. MFU is
// relative to this rate. Collective.
double matrix_rate(const stretto::Communicator& world, stretto::DType dtype);

}  // namespace apps
