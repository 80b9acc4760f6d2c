#pragma once
#include <string>

#include "layers/checkpoint/checkpoint_index.hpp"
#include "stretto/layers/sharded_parameters.hpp"

// Checkpoints of the errors that each rank feeds back to its own gradients: what MomentumExchange, CoefficientExchange and
// PowerSGD have yet to send of them. CheckpointSnapshot saves all of ShardedParameters::errors().
namespace stretto {

inline constexpr const char* local_vectors_key = "local_vectors";    // in a shard's metadata: local_vectors_text()
inline constexpr const char* former_local_vectors_key = "momentum";  // the same in checkpoints of former versions
// A description, in JSON, of each of local_gradients() that travels or has errors: its ranks, this rank, and the places of
// the parameters' slices in it. Empty if ranks sum gradients as they are.
std::string local_vectors_text(const ShardedParameters& parameters);

// In the layout that saved the checkpoint, each rank restores its errors from its own shard, and the factors of PowerSGD. In
// another layout, the ranks restore errors whose sum over the ranks is the saved one: the first rank of each group takes the
// sum of all ranks' errors of their own contributions, and the owner of each part of a vector takes the errors of that
// part's sums; PowerSGD begins with fresh factors. Logs a warning if errors are lost: errors that the checkpoint lacks,
// errors that this training does not feed back, and, in another layout, errors of sums over a node.
void restore_local_errors(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards);

}  // namespace stretto
