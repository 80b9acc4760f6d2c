#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "layers/checkpoint/files/safetensors.hpp"
#include "stretto/layers/optimizer.hpp"

namespace stretto {

// Elements of a parameter in a shard: `count` of the slice (first, extents), from its element `begin` on.
struct CheckpointPiece {
  std::size_t shard = 0;
  Shape first, extents;
  std::int64_t begin = 0, count = 0;
  std::string tensor = {};  // its name in the shard, where that is not the parameter's (Parameter::part_of)
};

bool lies_within(const CheckpointPiece& piece, const Shape& shape);

struct CheckpointTensor {
  Shape shape;  // of the whole parameter
  std::vector<CheckpointPiece> pieces;
  std::int64_t older = 0;  // versions before the latest, where they are saved
};
using CheckpointTensors = std::map<std::string, CheckpointTensor>;  // by Parameter::global_name()

// The file index.json of a checkpoint: which shards there are, and which of them holds what.
struct CheckpointIndex {
  std::string id;  // which all shards repeat
  std::int64_t step = 0, optimizer_steps = 0;
  OptimizerKind optimizer;    // its name, and the names of its slots
  std::string layout;         // layout_text() of the job that saved it
  std::string choices;        // Communicator::choices() of that job; empty before version 0.3
  bool trained_only = false;  // it lacks what was frozen
  int replicas = 1;           // each has as many shards, replica by replica
  bool has_late = false;      // no update has taken the gradients of the last step, which it has beside the slots
  bool in_flight = false;     // of a pipeline without a flush: what follows reads older versions, which it has as well
  std::map<std::string, std::string> notes;
  struct Shard {
    std::string file;
    std::uint64_t bytes = 0;
    std::optional<std::uint64_t> digest;  // digest_of_file(); checkpoints of version 0.2 have none
  };
  std::vector<Shard> shards;
  CheckpointTensors tensors;
};

std::string shard_file(std::size_t rank);  // "rank_00003.safetensors"

// The metadata that every shard has of itself, besides "format".
inline constexpr const char* id_key = "checkpoint";
inline constexpr const char* shard_key = "shard";    // its file
inline constexpr const char* pieces_key = "pieces";  // pieces_text()
std::string pieces_text(const CheckpointTensors& tensors);

// Returns the path of what a rank has written. Throws Error(io) if it is not there.
std::filesystem::path require_shard(const std::filesystem::path& directory, std::size_t rank);
// Completes an index of `id`, `step`, ... with what the headers of all shards in a directory say, and with the digests of
// the shards, as bits. Throws Error(io) for a shard that is not there or belongs to another checkpoint.
void index_shards(CheckpointIndex& index, const std::filesystem::path& directory, const std::vector<std::int64_t>& digests);

std::string text_of(const CheckpointIndex& index);  // throws Error(invalid_argument) for notes that are no UTF-8
// Reads the index with the shards and pieces of one replica only, as if that had been saved alone. Throws Error(io) for a
// file that is missing or describes no checkpoint, and for a replica that the checkpoint does not have.
CheckpointIndex read_index(const std::filesystem::path& checkpoint, int replica = 0);

// Opens the shards of a checkpoint when they are first asked for, and reads each once to its end for its digest, at some
// GB/s. Throws Error(io) for one that is missing, cut off, changed, of another checkpoint, or in the place of another.
class CheckpointShards {
 public:
  CheckpointShards(std::filesystem::path checkpoint, const CheckpointIndex& index);
  const SafetensorsReader& operator[](std::size_t shard);
  const std::filesystem::path& checkpoint() const { return checkpoint_; }

 private:
  std::filesystem::path checkpoint_;
  const CheckpointIndex& index_;  // must outlive the object
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
};

}  // namespace stretto
