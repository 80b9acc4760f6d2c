#pragma once
#include <cstdint>
#include <vector>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// Updates that begin before the norm of the whole gradient is known, behind backward, and are taken back where clipping or
// an overflow says so (SuperOffload; Lian et al. 2025). With ShardedParameters::Options::Offload::speculates:
//
//   sharded.begin_step();
//   update.begin(lr, gradient_scale);      // as if nothing is clipped
//   ... forward and backward: as soon as a unit's last sum is done, the stream "optimizer" updates it ...
//   sharded.finish_sums();
//   if (the norm asks for no clipping) {
//     update.keep();
//   } else {
//     update.take_back();
//     if (the norm is finite) optimizer.step(lr, gradient_scale of the norm);
//   }
//
// The weights have the bits of Optimizer::step() behind finish_sums(). Units whose state lies in memory, and those of
// UnitTraffic::Options::summed_last, are updated by keep(), as step() does.
//
// Taking updates back copies no state: an update writes a unit's new state to a second place in the file,
// and keep() lets the two places change roles. So the file takes twice its bytes: 24/N for each parameter with AdamW and
// 16-bit values on N ranks, 16/N in fp32. The new values wait in memory of their own, as many bytes as the values that this
// rank updates with state in the file. A step that is taken back reads and writes the state twice. Between begin() and
// keep() or take_back() nobody else may read or write the optimizer's states.
class STRETTO_API SpeculativeUpdate {
 public:
  // Both must outlive the object. Throws Error(invalid_argument) for an optimizer that updates whole matrices or exchanges
  // its momentum, for one that keeps no state, and without Offload::speculates.
  SpeculativeUpdate(ShardedParameters& parameters, Optimizer& optimizer);
  ~SpeculativeUpdate();
  SpeculativeUpdate(const SpeculativeUpdate&) = delete;
  SpeculativeUpdate& operator=(const SpeculativeUpdate&) = delete;

  void begin(double lr, double gradient_scale);
  // Both block until what has begun is computed, and throw what the stream has thrown, and Error(invalid_argument) without
  // begin(). keep() also updates what is left.
  void keep();
  void take_back();
  std::int64_t taken_back() const { return taken_back_; }  // steps, so far, in which the update of a unit had begun
  static bool can_update(const OptimizerKind& kind) { return !kind.whole_matrices && kind.sums_gradients(); }

 private:
  void update_behind_sum(std::size_t unit);

  ShardedParameters& parameters_;
  Optimizer& optimizer_;
  std::vector<bool> updates_;  // by unit, in this step
  bool has_begun_ = false;     // the update of a unit, in this step
  std::int64_t taken_back_ = 0;
  Work last_;
  Stream stream_{"optimizer", Priority::background};  // its end waits for updates
};

}  // namespace stretto
