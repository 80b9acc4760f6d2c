#pragma once
#include <algorithm>
#include <vector>

#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// One unit of ShardedParameters.
struct UnitMembers {
  bool trainable = true;                      // all of them, or none
  StoredFormat stored = StoredFormat::plain;  // of all of them; plain where they are trainable
  Axes axes;                                  // over which their gradients are summed; axes of size 1 are left out
  std::vector<std::size_t> parameters;        // in the order of backward, in which they lie in the unit
  std::int64_t elements = 0;

  // The first and the last stage of a pipeline use the unit at different times. It is therefore gathered and summed once a
  // step, and not quantized. Without a flush both update all of it, since the first stage, which updates earlier, would wait
  // for a share of the last one's. What is stored in fewer bits travels so.
  bool at_both_ends() const { return axes.contains(Axis::pipeline); }
  ZeroStage stage(const ShardedParameters::Options& options) const {
    if (!at_both_ends()) return options.zero;
    return options.versions > 0 ? ZeroStage::none : std::min(options.zero, ZeroStage::optimizer);
  }
  QuantizedFormat format(QuantizedFormat wanted) const {
    return at_both_ends() || stored != StoredFormat::plain ? QuantizedFormat::none : wanted;
  }
  // Elements of each rank's share, padding included.
  std::int64_t share(const MeshShape& mesh) const {
    const int ranks = mesh.gradient_ranks(axes);
    return (elements + ranks - 1) / ranks;
  }
  bool has_second_copy() const { return !at_both_ends() && stored == StoredFormat::plain; }  // with hpZ
};

// How parameters are divided into units. The ZeRO stage has no part in it.
std::vector<UnitMembers> cut_units(const Parameters& parameters, const MeshShape& mesh,
                                   const ShardedParameters::Options& options);

// The bytes of each unit's shares that lie in files (ShardedParameters::Options::offload).
struct SharesInFiles {
  std::vector<std::int64_t> values, gradients;
};
SharesInFiles shares_in_files(const std::vector<UnitMembers>& units, const MeshShape& mesh,
                              const ShardedParameters::Options& options);

// Whether units may come to be updated by share at ZeroStage::none, once steps have been measured. With a delay, gradients
// have a step's time to travel, and values would have none. Without a flush there are no steps. PowerSGD's sums are whole on
// all ranks.
inline bool may_postpone(const ShardedParameters::Options& options) {
  return options.zero == ZeroStage::none && options.overlap && options.measured_steps > 0 && options.delay == 0 &&
         options.versions == 0 && !options.powersgd.any();
}

// Whether values that come from other ranks stay from their first use in a step until the last: in a pipeline, unless some
// lie in files, which are for those that the memory has no room for.
inline bool keeps_through_step(const MeshShape& mesh, const ShardedParameters::Options& options) {
  const ShardedParameters::Options::InFile& values = options.offload.values;
  return mesh[Axis::pipeline] > 1 && (values.directory.empty() || values.ratio == 1);
}

}  // namespace stretto
