#pragma once
#include "stretto/method.hpp"

namespace stretto {

// Throws Error(invalid_argument) if the algorithm does not support the method's lanes, pieces or parts. quantized: the
// method is for a quantized collective; more algorithms then take pieces.
void check_method(const Method& method, bool quantized);

}  // namespace stretto
