#pragma once
#include <string>

#include "layers/checkpoint/checkpoint_index.hpp"
#include "stretto/layers/sharded_parameters.hpp"

// The errors that ranks feed back to gradients of their own, by MomentumExchange or PowerSGD, in checkpoints.
// CheckpointSnapshot saves all of ShardedParameters::errors().
namespace stretto {

inline constexpr const char* local_vectors_key = "momentum";  // in a shard's metadata: local_vectors_text()
// For each of local_gradients() that travels, in JSON: its ranks, this rank, and where parameters' slices lie in it. Empty
// if ranks sum gradients as they are.
std::string local_vectors_text(const ShardedParameters& parameters);

// In the layout that saved the checkpoint, restores this rank's errors from its own shard, and the factors of PowerSGD. In
// another one, ranks restore what keeps the sum over the ranks of what is yet to be added: the first rank of each group
// begins with the errors of all ranks' own contributions, added up, and the owner of each part of a vector with the errors
// of that part's sums; factors stay the first ones. Logs a warning where errors are lost: those that the checkpoint lacks,
// those that this training does not feed back, and in another layout those of sums over a node.
void restore_local_errors(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards);

}  // namespace stretto
