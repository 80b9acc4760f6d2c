#pragma once
#include <vector>

#include "layers/served/served_traffic.hpp"
#include "stretto/overlap/sharded_unit.hpp"

namespace stretto {

// A unit whose values lie in a table of parameter servers, which update them: sum() pushes this rank's gradients, gather()
// pulls values. Every worker has whole values and gradients, and gradient_share() is its own gradient.
class ServedUnit final : public ShardedUnit {
 public:
  // alone: a group of this rank. traffic must outlive the unit.
  ServedUnit(const Communicator& alone, std::vector<Shape> shapes, DType dtype, DType gradient_dtype, const Options& options,
             ServedTraffic& traffic, int table)
      : ShardedUnit(alone, alone, std::move(shapes), dtype, gradient_dtype, options), traffic_(traffic), table_(table) {}

  // Values come once a step, behind the update.
  ZeroStage stage() const override { return ZeroStage::optimizer; }
  [[nodiscard]] Work gather(const Stream& stream) override;
  [[nodiscard]] Work sum(const Stream& stream) override;
  // Brings the values that have all pushes of workers that meet.
  [[nodiscard]] Work settle() { return traffic_.pull(table_, share(), {.consistency = Consistency::sequential()}); }

 private:
  ServedTraffic& traffic_;
  int table_;
};

}  // namespace stretto
