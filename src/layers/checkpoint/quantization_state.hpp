#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/checkpoint/checkpoint_index.hpp"
#include "stretto/layers/sharded_parameters.hpp"

// Quantized sums of gradients (ZeRO++) carry two things from step to step: errors that are fed back, and the number of sums
// that have drawn random numbers. Each rank has its own, for each of its units.
namespace stretto {

// Describes what a rank's share of the state depends on. Two jobs of the same text have the same units on the same ranks.
std::string layout_text(const ShardedParameters& parameters);

inline constexpr const char* units_key = "units";  // in a shard's metadata: units_text()
// For each unit of this rank, in JSON: its name, its sums so far, and its parameters' slices in the order in which its
// stored errors have them. Empty if nothing is quantized.
std::string units_text(const ShardedParameters& parameters);
std::string error_name(const std::string& unit, Hop hop);  // of a shard's tensor: "error.contribution.h.0.mlp.c_fc.weight"
// The name of a fragment's errors where replicas exchange changes of weights in fewer bits (DiLoCo): "diloco.0".
std::string outer_errors_name(std::size_t fragment);

// In the layout that saved the checkpoint, restores this rank's state from its own shard. In another one, ranks restore what
// keeps the sums of the next step right: the first rank of each group begins with the errors of all contributions, added
// up, the others with none; errors of sums over a node are dropped. Random numbers go on where no rank has drawn any. The
// errors of changes of weights are dropped in another layout, which is logged.
void restore_quantization(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards);

}  // namespace stretto
