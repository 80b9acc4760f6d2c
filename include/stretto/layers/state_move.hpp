#pragma once
#include <cstdint>
#include <memory>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The state of a training on its way from one layout of the job's ranks to another, without a checkpoint:
//
//   StateMove state(trainer->sharded(), trainer->optimizer());
//   const auto notes = trainer->notes();
//   trainer.reset();                                          // frees the old layout
//   trainer = std::make_unique<Trainer>(Mesh(world, other), options);
//   state.into(trainer->sharded(), trainer->optimizer());
//   trainer->restore(notes);
//
// The same state moves that a checkpoint has: values, master weights, the optimizer's slots, its notes and its number of
// steps, and with a delay the gradients of the last step. The losses that follow are those of the training in its old
// layout, to rounding. The ranks, the model, the types and the kind of optimizer must be the same; mesh, ZeRO stage,
// schedule, microbatch and recomputation may be others.
//
// Ranks may join: into() may be called on a mesh of more ranks, of which the first are those of the old one in their order.
// The others take part with an object without state.
class STRETTO_API StateMove {
 public:
  StateMove();  // of a rank that joins: it brings nothing
  // Between two steps: copies what this rank owns into host memory, and waits for late gradients. Memory: the same as a
  // rank's shard of a checkpoint. Throws Error(invalid_argument), in one sentence, for state that belongs to a layout:
  // errors of quantized sums that are fed back, random numbers of stochastic rounding, a momentum exchange (OneBitAdam,
  // DeMo), sums by PowerSGD, versions of a pipeline without a flush, frozen values in stored formats (StoredFormat); and on
  // a GPU. Replicas of DiLoCo are the caller's duty: this object sees neither a round in flight (call DiLoCo::settle()
  // before) nor the errors of a format (leave DiLoCoOptions::format at none).
  StateMove(const ShardedParameters& parameters, const Optimizer& optimizer);
  ~StateMove();
  StateMove(const StateMove&) = delete;
  StateMove& operator=(const StateMove&) = delete;

  // Brings the state to the ranks of another mesh, whose world has the same ranks in the same order, and then those that
  // join, by a Move for some parameters at a time, gives back the memory of what has been moved, and calls
  // optimizer.restore(). Call it once.
  // Collective over that world. Returns the bytes that this rank has received. Besides the state, a rank holds at most
  // 64 MiB of parameters (or the largest one with its slots) that have arrived, and as much of messages. Throws
  // Error(invalid_argument), on all ranks alike, for another model, type or kind of optimizer, fewer ranks, or late
  // gradients where there is no delay.
  std::int64_t into(ShardedParameters& parameters, Optimizer& optimizer);

 private:
  struct STRETTO_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
