#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/state_tensors.hpp"

namespace stretto {

// A rank's part of a checkpoint, in host memory.
class CheckpointSnapshot {
 public:
  // Both must outlive the object. `copies`: take() copies, into memory that the constructor has allocated; otherwise it
  // refers to the state where that is in host memory.
  CheckpointSnapshot(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, bool copies);

  void take();
  // Writes the shard with what take() has found, and blocks until it is on the disk.
  void write(const std::filesystem::path& path, std::map<std::string, std::string> metadata) const;

 private:
  struct Part {
    std::size_t range;  // of ShardedParameters::ranges()
    StateTensor which;
    TensorEntry entry;
    Tensor values;
  };
  void add_parts();

  const ShardedParameters& parameters_;
  const AdamWOptimizer& optimizer_;
  bool copies_;
  std::vector<Part> parts_;
  CheckpointTensors pieces_;
  std::vector<Part> errors_;  // of quantized sums; without `range` and `which`
  std::string units_;
};

}  // namespace stretto
