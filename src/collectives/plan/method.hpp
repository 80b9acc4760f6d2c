#pragma once
#include "stretto/plan.hpp"

namespace stretto {

// Throws Error(invalid_argument) for lanes, pieces and parts that its algorithm has not; quantized: as a quantized
// collective may have them.
void check_method(const Method& method, bool quantized);

}  // namespace stretto
