#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "stretto/layers/optimizer.hpp"
#include "stretto/quantization.hpp"

namespace stretto {

// How replicas of a whole training job agree, by a step of an outer optimizer every `sync_every` steps (DiLoCo; Douillard et
// al. 2023), part by part where there are several fragments (Streaming DiLoCo; Douillard et al. 2025). Names as in torchft.
struct STRETTO_API DiLoCoOptions {
  int replicas = 1;                 // 1: none of this
  std::int64_t sync_every = 500;    // inner steps between two outer steps of a parameter: H
  double lr = 0.7, momentum = 0.9;  // of the outer optimizer, SGD with Nesterov's momentum
  // The model is cut into so many runs of whole parameters, of about equally many trained elements, in the order of the
  // model: every sync_every / fragments steps the next one is exchanged.
  int fragments = 1;
  // Inner steps that compute while a fragment is exchanged. The outer step is made behind them; what they have changed of
  // the fragment counts only as far as fragment_update_alpha says.
  std::int64_t fragment_sync_delay = 0;
  double fragment_update_alpha = 0;  // a replica goes on from (1 - alpha) global + alpha local values
  // The format in which changes travel: none (the accumulator type), int8 or int4, with error feedback.
  QuantizedFormat format = QuantizedFormat::none;

  bool any() const { return replicas > 1; }
  std::int64_t interval() const { return sync_every / fragments; }  // steps between two exchanges
  // The fragment that is sent behind a step, counted from 1, and the one that is merged there.
  std::optional<int> sent_at(std::int64_t step) const;
  std::optional<int> merged_at(std::int64_t step) const { return sent_at(step - fragment_sync_delay); }
  // Throws Error(invalid_argument), in one sentence, for numbers that do not go together.
  void check() const;
  // What the outer optimizer keeps of each element beside the slots of the inner one: the value at the last outer step, and
  // the momentum unless that is 0.
  std::vector<StateSlot> slots() const;
};

// The fragment of each of Parameters::all(); -1 for a frozen one. Depends on the whole model alone, not on the layout.
// Throws Error(invalid_argument) if a fragment would have no parameter.
STRETTO_API std::vector<int> fragments_of(const Parameters& parameters, int fragments);

// The ranks of a job as `replicas` runs of consecutive ranks.
struct ReplicaGroups {
  Communicator replica;  // this rank's run: the world of the replica's Mesh
  Communicator peers;    // the ranks that have this rank's place in each replica; rank() is the number of the replica
};
// Collective. Throws Error(invalid_argument) unless the replicas divide the ranks.
STRETTO_API ReplicaGroups split_into_replicas(const Communicator& world, int replicas);

// The outer steps of one rank:
//
//   DiLoCo outer(parameters, optimizer, peers, options);    // before a CheckpointSaver is made
//   for each step:
//     outer.begin_step();
//     ... gradients of the replica, optimizer.step() ...
//     outer.end_step();
//
// When H steps have passed, with theta the value at the last outer step and theta_i what replica i has made of it,
//
//   delta = mean over i of (theta - theta_i)                the change, as a gradient: old minus new
//   b = momentum b + delta;  theta -= lr (delta + momentum b)
//   theta_i = (1 - alpha) theta + alpha theta_i
//
// Replicas exchange one vector for each fragment: each rank with its peers the elements of its own shares
// (ShardedParameters::Range::in_share), by Algorithm::two_shot, which adds in the order of the replicas, so that copies of
// an element stay equal on all ranks. A quantized format is for what one rank updates: copies that several ranks update,
// such as norms of tensor-parallel ranks, travel as they are, since ranks that quantized them among other elements would
// drift apart. A rank sends 2 (R-1)/R e n bytes for n elements of e bytes. Then owners bring the new
// values to the ranks of their replica. The inner optimizer's state stays as it is. Master weights, where there are any, are
// what is exchanged. With a delay the exchange runs in a background stream.
//
// The number of steps of the optimizer alone decides what happens when: a job that is resumed goes on in the middle of a
// round. Memory: the slots, and the vector of one fragment while it is exchanged; with a quantized format, errors of a
// vector of each fragment and of a rank's part of it.
class STRETTO_API DiLoCo {
 public:
  // Adds slots to the optimizer. All must outlive the object. `peers` has options.replicas ranks, which have the same
  // layout, and serves nothing else meanwhile. Throws Error(invalid_argument) like DiLoCoOptions::check() and
  // fragments_of().
  DiLoCo(ShardedParameters& parameters, Optimizer& optimizer, const Communicator& peers, const DiLoCoOptions& options);
  // Waits for an exchange that is in flight.
  ~DiLoCo();
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // Before the optimizer's first step the outer values become the values that are there. Collective over all replicas, at
  // the first call, in which peers compare the outer values: throws Error(invalid_argument) on all ranks that see others,
  // since replicas that begin apart stay apart.
  void begin_step();
  // Sends and merges what is due behind this step. Collective over all replicas where something is.
  void end_step();
  // Waits for an exchange in flight, and makes its outer step; replicas still merge it when it is due. Changes no bit of
  // what follows. Call it before the state is saved, since what is in flight is in no checkpoint.
  void settle();

  const DiLoCoOptions& options() const { return options_; }
  const Communicator& peers() const { return peers_; }
  // The elements that this rank sends of each fragment.
  std::vector<std::int64_t> elements() const;

 private:
  struct Part {  // of a fragment's vector
    std::size_t range = 0;
    std::int64_t first = 0;
  };
  struct Fragment {
    std::vector<Part> parts;
    std::vector<std::size_t> units;  // that the parts lie in
    std::int64_t elements = 0;
    std::int64_t copied = 0;  // at the end of the vector: other ranks of the replica update copies of them
  };
  const Fragment& at(int fragment) const { return fragments_[static_cast<std::size_t>(fragment)]; }
  const Tensor& master(std::size_t range) const { return optimizer_.states()[range].master; }
  const Tensor& outer(std::size_t range) const { return optimizer_.states()[range].slots[slot_]; }
  // Behind access to the states of a part: gives back its unit's, unless that is the next part's, too.
  void release_behind(const Fragment& fragment, const Part& part) const;
  void compare_with_peers() const;
  void send(int fragment);
  void merge(const Fragment& fragment);
  void share(std::size_t unit);

  ShardedParameters& parameters_;
  Optimizer& optimizer_;
  Communicator peers_;
  DiLoCoOptions options_;
  std::size_t slot_ = 0;  // of the outer values; the momentum is the next one
  std::vector<Fragment> fragments_;
  bool has_begun_ = false;
  std::optional<int> in_flight_;
  Tensor change_;  // of the fragment in flight
  Work exchange_;
  Stream stream_;
};

}  // namespace stretto
