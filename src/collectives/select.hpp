#pragma once
#include "stretto/plan.hpp"

namespace stretto {

// Which algorithm the library takes for a collective of p ranks over a vector of that many bytes in all.
Algorithm choose_algorithm(Collective collective, int size, std::int64_t bytes);

}  // namespace stretto
