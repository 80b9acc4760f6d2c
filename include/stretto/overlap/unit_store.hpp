#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// The stages of ZeRO (Rajbhandari et al. 2020): the training state of which each of N ranks keeps 1/N only. For values and
// gradients of 2 bytes and 12 bytes of optimizer state, a rank keeps, per parameter: 16 bytes, 4 + 12/N, 2 + 14/N, or 16/N.
enum class ZeroStage : std::uint8_t { none, optimizer, gradients, values };
inline constexpr std::array<ZeroStage, 4> zero_stages = {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients,
                                                         ZeroStage::values};

// The computation that a use of a layer is for. A layer computes its backward at once, or in two halves: the gradient of its
// input, and later those of its weights (Qi et al. 2023).
enum class Pass : std::uint8_t { forward, backward, backward_input, backward_weight };
STRETTO_API const char* name(Pass pass);
constexpr bool reads_values(Pass pass) { return pass != Pass::backward_weight; }
constexpr bool adds_gradients(Pass pass) { return pass == Pass::backward || pass == Pass::backward_weight; }

// Where one unit of parameters lies: its values, its gradients, and this rank's share of both. UnitTraffic decides when a
// unit is gathered and summed; the store decides where the bytes are and how they travel. ShardedUnit keeps them in memory.
// A store in host memory, in files or on other ranks derives from this class, and one UnitTraffic may have units of several
// stores.
//
// Works that a store returns may be waited for in computation(). Only one thread calls a store.
class STRETTO_API UnitStore {
 public:
  UnitStore() = default;
  virtual ~UnitStore();

  virtual ZeroStage stage() const = 0;  // what of the unit leaves between uses: below `gradients` nothing does
  // False: the unit's uses differ from step to step, as an expert's do. Nothing of it is learned or prefetched then.
  virtual bool ordered() const { return true; }
  // True: a gather costs other ranks nothing. Values are then given up between uses that are far apart even where others
  // stay through a step (UnitTraffic::Options::keep_through_step).
  virtual bool gathers_alone() const { return false; }
  // False: the unit has no gradients. Nothing below that concerns gradients is called then, but zero_gradients() and
  // zero_unset(), which do nothing.
  virtual bool trainable() const { return true; }
  // A gather() will come soon, behind those of other units: a store whose share lies far away begins to bring it near.
  virtual void fetch() {}
  // Called when a use begins, and before a gather() for it, which may come earlier: a store that keeps several versions of
  // the values has the one of this microbatch ready then.
  virtual void used_for(Pass /*pass*/, int /*microbatch*/) {}

  // This rank's share of the values. Whoever writes it must call share_changed() then; no gather may be in flight meanwhile.
  virtual const Tensor& share() const = 0;
  virtual void share_changed() = 0;
  // This rank's share of the summed gradients, valid when the Work of the step's last sum() is done.
  virtual const Tensor& gradient_share() const = 0;

  // The tensors, as views by shape; empty while values are not there.
  virtual const std::vector<Tensor>& values() const = 0;
  virtual bool has_values() const = 0;
  // Brings the values; values() may be read when the Work is done.
  [[nodiscard]] virtual Work gather(const Stream& stream) = 0;
  // ZeroStage::values: gives up the values as soon as operations in flight and copies of values() no longer use them.
  virtual void release() = 0;

  // Begins a step: its first sum replaces gradient_share(), further ones are added. Gradients that are always there become
  // zeros, or unset.
  virtual void zero_gradients() = 0;
  // The gradients to add to, as views by shape. If they were not there, they are zeros, or unset.
  virtual const std::vector<Tensor>& gradients() = 0;
  virtual bool has_gradients() const = 0;
  // Unset gradients hold anything until whoever adds first overwrites them. Those that nobody has overwritten become zeros.
  virtual void zero_unset() = 0;
  virtual void discard_gradients() = 0;  // gives up gradients that are not always there, without a sum
  // Sums the gradients over the ranks into gradient_share(). Gradients that are not always there are given up by the call.
  [[nodiscard]] virtual Work sum(const Stream& stream) = 0;
  // ZeroStage::none: brings all shares of the summed gradients to all ranks, in gradients().
  [[nodiscard]] virtual Work gather_gradients(const Stream& stream) = 0;

 protected:
  UnitStore(const UnitStore&) = default;
  UnitStore(UnitStore&&) = default;
  UnitStore& operator=(const UnitStore&) = default;
  UnitStore& operator=(UnitStore&&) = default;
};

}  // namespace stretto
