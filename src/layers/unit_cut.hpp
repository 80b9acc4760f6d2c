#pragma once
#include <vector>

#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// The parameters of one unit of ShardedParameters, in the order of backward, and their place in the unit is that order.
struct UnitMembers {
  Axes axes;  // over which their gradients are summed; axes of size 1 are left out
  std::vector<std::size_t> parameters;
  std::int64_t elements = 0;
};

// How parameters are divided into units. The ZeRO stage has no part in it.
std::vector<UnitMembers> cut_units(const Parameters& parameters, const MeshShape& mesh,
                                   const ShardedParameters::Options& options);

}  // namespace stretto
