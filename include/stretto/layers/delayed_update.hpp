#pragma once
#include <functional>
#include <optional>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The update of the gradients of the step before, behind the computation of a step (the delayed parameter update of
// ZeRO-Offload; Ren et al. 2021). Where the optimizer's state lies in a file (ShardedParameters::Options::updates_behind),
// it is read and written meanwhile:
//
//   sharded.begin_step();
//   if (sharded.sums_arrived()) update.begin(lr, gradient_scale);
//   ... forward and backward ...
//   sharded.finish_sums();
//   const double norm = update.finish();   // of the gradients that it has taken
//   update.show();                         // unless gradient_scale has left it out
//
// In the stream "optimizer" the update waits for the sums, computes their norm, and goes through the units. The values stay
// as they are until show(). The weights have the bits of sums_arrived() and Optimizer::step() behind finish_sums().
//
// Memory: the new values wait in memory of their own, as many bytes as the values that this rank updates. Between begin()
// and show() nobody else may read or write the optimizer's states.
class STRETTO_API DelayedUpdate {
 public:
  // Both must outlive the object. Collective over all ranks.
  DelayedUpdate(ShardedParameters& parameters, Optimizer& optimizer);
  DelayedUpdate(const DelayedUpdate&) = delete;
  DelayedUpdate& operator=(const DelayedUpdate&) = delete;

  // By what an update multiplies gradients of such a norm (gradient_norm()); nothing: there is no update. Called in the
  // stream, on all ranks with the same norm.
  using GradientScale = std::function<std::optional<double>(double norm)>;
  // Collective: ranks communicate in the stream.
  void begin(double lr, const GradientScale& gradient_scale);
  // Blocks until the update has been computed, or left out, and returns the norm. Throws what the stream has thrown.
  double finish();
  // Makes the new values the values, which travel to other ranks. Behind finish() of an update that was not left out; throws
  // Error(invalid_argument) otherwise.
  void show();

 private:
  ShardedParameters& parameters_;
  Optimizer& optimizer_;
  Communicator group_;  // of the norm: the mesh's is in use meanwhile
  double norm_ = 0;
  Work done_;
  Stream stream_{"optimizer", Priority::background};  // its end waits for the update
};

}  // namespace stretto
