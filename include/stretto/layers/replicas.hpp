#pragma once
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// Collective over the mesh's world, between two steps. Compares checksums of all values with those on the other ranks that
// hold copies of them (along the data, ring and ulysses axes), whose bits are the same as long as memory, processors and
// links work (silent data corruption; Dixit et al. 2021). If some differ, rank 0 throws Error(unavailable) and all others
// Error(peer_gave_up); the sentence names the parameter, the ranks that differ from most, and the others. Throws
// Error(invalid_argument) if no rank holds a copy of another's values, as at ZeroStage::values. Cost: reads every value
// once, and sends 8 bytes per parameter to every rank.
STRETTO_API void check_replicas(ShardedParameters& parameters);

}  // namespace stretto
