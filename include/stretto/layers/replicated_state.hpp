#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The last states of training in the memory of two ranks each, so that a job that loses a rank goes on from its last step
// instead of its newest checkpoint (Gemini; Wang et al. 2023). Each rank keeps its own shard of a checkpoint
// (checkpoint.hpp), and that of the rank half a job before it: on another node if there are several of one size. Of both it
// keeps the last two, since a rank may be lost while the last is under way. Memory: 4 shards, of 3 numbers for each element
// that a rank owns.
//
// The object outlives the parameters: after a loss, they are destroyed with their job, and it is asked.
class STRETTO_API ReplicatedState {
 public:
  ReplicatedState();
  ~ReplicatedState();
  ReplicatedState(const ReplicatedState&) = delete;
  ReplicatedState& operator=(const ReplicatedState&) = delete;

  // Forgets what was kept, and keeps states of this job from now on. Collective.
  void begin(const Communicator& world);
  // Keeps the state after `step` steps. Collective over begin()'s communicator, which must be the mesh's world; between two
  // steps. `notes` as for CheckpointSaver::save(). Blocks until both ranks have the shard. Cost: two copies and one message
  // of the shard.
  void keep(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, std::int64_t step,
            const std::map<std::string, std::string>& notes = {});
  // Writes the newest state that these ranks have together into `directory`, as a checkpoint of the mesh that they were, and
  // returns its step. Returns nothing if a rank and the one that keeps its shard are both lost, or if the state cannot be
  // written, which is logged. Collective over the communicator that shrink() returned.
  std::optional<std::int64_t> save(const Communicator& left, const std::string& directory) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
