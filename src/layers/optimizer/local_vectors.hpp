#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layers/sharded/unit_cut.hpp"

namespace stretto {

// How the trainable parameters of a rank lie in vectors, one behind the other in the order of their units. One vector for
// each set of axes over which gradients are summed and set of axes along which ranks hold copies of the sums.
struct LocalVector {
  Axes summed, copied;  // without axes of size 1
  std::int64_t elements = 0;
  std::vector<LocalGradients::Piece> pieces;  // none counts yet
};
std::vector<LocalVector> local_vectors(const Parameters& parameters, const std::vector<UnitMembers>& units,
                                       const MeshShape& mesh);

// The same with their memory and groups.
std::vector<LocalGradients> local_gradients_of(const Parameters& parameters, const std::vector<UnitMembers>& units,
                                               const Mesh& mesh, const ShardedParameters::Options& options);

// The name in ShardedParameters::errors() of what a rank has yet to send of a vector's momentum: the errors of 1-bit Adam,
// and DeMo's momentum. No unit has it.
inline std::string unsent_momentum(const LocalGradients& vector) { return "momentum." + vector.name; }

// Throws Error(invalid_argument), in one sentence, for options under which an optimizer of that name cannot exchange
// something else than sums of gradients.
void check_own_gradients(std::string_view optimizer, const ShardedParameters::Options& options);

}  // namespace stretto
