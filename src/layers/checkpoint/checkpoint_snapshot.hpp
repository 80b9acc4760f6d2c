#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/state_tensors.hpp"

namespace stretto {

struct TensorToSave {
  Tensor values;
  std::optional<std::size_t> unit;  // whoever has read the values calls Optimizer::release() for it; empty: no state of one
};
// The tensors of a rank's shard, in the shard's order; they refer to the state. With a delay, the function first waits for
// the sums in flight; the gradients that these bring are in the shard even if an update has taken them
// (CheckpointIndex::has_late). Behind the tensors of the state, whose types and sizes never change, are the errors of
// quantized sums, from the first sum on.
std::vector<TensorToSave> tensors_to_save(const ShardedParameters& parameters, const Optimizer& optimizer,
                                          bool trained_only = false);

// A rank's part of a checkpoint, in host memory.
class CheckpointSnapshot {
 public:
  struct Options {
    // take() copies, into memory that the constructor has allocated; otherwise it refers to the state where that is in host
    // memory.
    bool copies = false;
    bool trained_only = false;
    std::size_t shard = 0;  // the number of this rank's among those of the checkpoint
  };
  // Both must outlive the object.
  CheckpointSnapshot(const ShardedParameters& parameters, const Optimizer& optimizer, const Options& options);

  void take();
  // Writes the shard with what take() has found, and blocks until it is on the disk. Returns its digest.
  std::uint64_t write(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata) const;
  // The beginning of what write() writes; the bytes of tensors_to_save() follow.
  std::string header(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata) const;

 private:
  struct Part {
    TensorEntry entry;
    Tensor values;
    std::size_t unit = 0;
  };
  void add_parts();
  std::vector<TensorEntry> entries() const;
  std::map<std::string, std::string> with_pieces(std::map<std::string, std::string> metadata) const;

  const ShardedParameters& parameters_;
  const Optimizer& optimizer_;
  Options options_;
  std::vector<Part> parts_;
  CheckpointTensors pieces_;
  std::vector<Part> errors_;  // of quantized sums
  std::string units_, local_vectors_;
};

}  // namespace stretto
