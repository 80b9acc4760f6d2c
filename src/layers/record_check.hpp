#pragma once
#include "stretto/layers/parameter.hpp"

namespace stretto {

// Collective over the mesh. Throws Error(invalid_argument), on every rank for the same parameter, for a record whose
// gradient would not be the sum over all tokens, and where the slices of all ranks are not the copies of the whole that the
// record promises. A wrong record would train a wrong model without an error.
void check_records(const Parameters& parameters, const Mesh& mesh);

}  // namespace stretto
