#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/layers/optimizer.hpp"

// The weights of a model in files of other tools, in the safetensors format: under other names, and in other layouts than
// those of checkpoints (checkpoint.hpp).
namespace stretto {

// A tensor in a safetensors file.
struct StoredTensor {
  std::string name;
  std::string type;  // "F32", "F64", "BF16", "F16", "I32"
  Shape shape;
  bool is_floating() const { return type != "I32"; }
};
// Returns the tensors of a file. Throws Error(io) if it is missing or no safetensors file.
STRETTO_API std::vector<StoredTensor> stored_tensors(const std::string& path);

// How a file holds a parameter.
struct ForeignTensor {
  std::string name;
  Shape shape;  // in the file; of as many elements as the parameter, or, when it is read, with more rows behind those of the
                // parameter
  // The parameter, seen as a matrix whose rows are all its dimensions but the last, lies transposed. E.g. [3, 8, 8] of
  // [q/k/v, out, in] as [8, 24] of [in, out].
  bool transposed = false;
};
using ForeignTensorOf = std::function<ForeignTensor(const Parameter&)>;

// Collective over the mesh's world, between two steps. Rank 0 writes the file, in F32, from master weights; if it cannot, it
// throws Error(io), and the others wait until it ends the job. Costs as save_checkpoint(), without the slots.
STRETTO_API void write_weights(const ShardedParameters& parameters, const Optimizer& optimizer, const std::string& path,
                               const ForeignTensorOf& foreign, const std::map<std::string, std::string>& metadata);

// Reads what this rank updates into the optimizer's states; each tensor from the first of the files that has it. Not
// collective; afterwards all ranks must call optimizer.restore(0), which brings the values to every rank. Throws Error(io)
// for a tensor that is missing, and Error(invalid_argument) for one of another shape; the states are then unspecified.
STRETTO_API void read_weights(const ShardedParameters& parameters, Optimizer& optimizer,
                              const std::vector<std::string>& paths, const ForeignTensorOf& foreign);

}  // namespace stretto
