#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The last states of training in the memory of two ranks each, so that a job that loses a rank goes on from its last step
// instead of its newest checkpoint (Gemini; Wang et al. 2023). Ranks form pairs of ranks half a job apart, which are on two
// nodes if there are several of one size; of an odd number of ranks, three form a group. A rank keeps its own shard of a
// checkpoint (checkpoint.hpp) and those of its partners: of the last state, and of the one before, since a rank may be lost
// while the last is under way. Memory: 4 shards (6 in a group of three), of value and slots for each element that a rank
// owns.
//
// While no state is under way, the last one can be restored unless a rank and its partners are all lost. While one is, that
// one or the one before can be.
//
// The object outlives the parameters: after a loss, they are destroyed with their job, and it is asked.
class STRETTO_API ReplicatedState {
 public:
  ReplicatedState();
  // Waits for the state that is under way.
  ~ReplicatedState();
  ReplicatedState(const ReplicatedState&) = delete;
  ReplicatedState& operator=(const ReplicatedState&) = delete;

  // Keeps states of this job from now on. Those of the job before are forgotten once a state of this one is whole.
  // Collective.
  void begin(const Communicator& world);
  // Keeps the state after `step` steps. Collective over begin()'s communicator, which must be the mesh's world; between two
  // steps; in host memory only. `notes` as for CheckpointSaver::save(). First waits as wait(). Returns when this rank's
  // shard is copied; the partners fetch it beside what follows. The second call of a job is the last that allocates. Cost: a
  // copy of the shard, then one message to each partner and a barrier on a background stream. Where gradients are quantized,
  // also the text of a shard's header and a small all-gather.
  void keep(const ShardedParameters& parameters, const Optimizer& optimizer, std::int64_t step,
            const std::map<std::string, std::string>& notes = {});
  // Returns when all ranks have their shards of the state that was kept last. Throws if a rank is lost.
  void wait();
  // Writes the newest state that these ranks have together into `directory`, as a checkpoint of the mesh that they were, and
  // returns its step. Returns nothing if a rank and its partners are all lost, or if the state cannot be written, which is
  // logged. Collective over the communicator that shrink() returned.
  std::optional<std::int64_t> save(const Communicator& left, const std::string& directory);

 private:
  struct STRETTO_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
