#pragma once
#include <ostream>
#include <set>
#include <stdexcept>

#include "parity.hpp"

// What each rank sends in a step for parameters and gradients, in closed formulas, and what the ledger says.
//
// N data-parallel ranks in nodes of m each, K = N/m of them; a value has e bytes, a gradient g. A unit of n elements has N
// shares of s = n/N, rounded up. In a gather and in a sum alike, every rank sends
//
//   on one node           (N-1) shares
//   direct, K > 1         (m-1) shares inside its node, (N-m) to other nodes
//   two_level, K > 1      (m-1) K shares inside its node, (K-1) to other nodes
//
// A step of M microbatches has for each unit (ZeRO, Rajbhandari et al. 2020)
//
//   stage      gathers of values, s e bytes a share     sums of gradients, s g bytes a share
//   none       none                                     1, and 1 gather of the summed gradients
//   optimizer  1                                        1
//   gradients  1                                        M
//   values     one for each use before which the        M
//              unit was not kept
//
// A unit is kept from one use to its next use in the step if fewer than max(prefetch, 1) other units are used in between,
// not counting those that are still in use when the first of the two ends.
//
// ZeRO++ (Wang et al. 2023), at stage values. hpZ: only a unit's first gather of a step goes over all ranks; in every other
// one a rank sends its part of N s/h elements to each of its h-1 neighbours. qwZ and qgZ: instead of s e or s g bytes, a
// share has s / group_elements() records, rounded up, of record_bytes() each, scale included.
namespace parity {

// The parameters that are used together, in the order of one microbatch.
using NamedUses = std::vector<std::vector<std::string>>;

inline NamedUses uses_of_a_microbatch(const TrainingOptions& options) {
  class Recorder : public ParameterUse {
   public:
    void begin(const UsedParameters& used, Pass /*pass*/) override {
      auto& names = uses.emplace_back();
      for (const Parameter* parameter : used.parameters) names.push_back(parameter->name);
    }
    NamedUses uses;
  } recorder;
  run_threads(1, [&](const Communicator& world) {
    TrainingOptions alone = options;
    alone.sharding = {.zero = ZeroStage::none};
    Trainer trainer(Mesh(world, {}), alone);
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.model.sequence));
    loss_with_gradients(trainer.model(), Batch::of(tokens, tokens, options.model.sequence), 1.0, recorder);
  });
  return recorder.uses;
}

// Units that are used together, in the order of a step. The uses of a group end in its order.
using UnitGroups = std::vector<std::vector<std::size_t>>;

inline UnitGroups unit_groups(const NamedUses& uses, const Trace& trace, std::int64_t microbatches) {
  UnitGroups groups;
  for (std::int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
    for (const std::vector<std::string>& names : uses) {
      auto& units = groups.emplace_back();
      for (const std::string& name : names) {
        const std::size_t unit = trace.unit_of.at(name);
        if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
      }
    }
  }
  return groups;
}

// Whether a unit is kept when its use as number `place` of group `at` has ended.
inline bool is_kept(const UnitGroups& groups, std::size_t at, std::size_t place, int prefetch) {
  const std::size_t unit = groups[at][place];
  const std::set<std::size_t> in_use(groups[at].begin() + static_cast<std::ptrdiff_t>(place) + 1, groups[at].end());
  std::set<std::size_t> between;
  for (std::size_t later = at + 1; later < groups.size(); ++later) {
    for (const std::size_t other : groups[later]) {
      if (other == unit) return between.size() < static_cast<std::size_t>(std::max(prefetch, 1));
      if (!in_use.contains(other)) between.insert(other);
    }
  }
  return false;
}

// At stage values, by unit.
inline std::vector<std::int64_t> gathers_of_a_step(const UnitGroups& groups, std::size_t units, int prefetch) {
  std::vector<std::int64_t> gathers(units, 0);
  std::set<std::size_t> kept;
  for (std::size_t at = 0; at < groups.size(); ++at) {
    for (const std::size_t unit : groups[at]) {
      if (!kept.contains(unit)) ++gathers[unit];
      kept.erase(unit);
    }
    for (std::size_t place = 0; place < groups[at].size(); ++place) {
      if (is_kept(groups, at, place, prefetch)) kept.insert(groups[at][place]);
    }
  }
  return gathers;
}

struct Bytes {  // that one rank sends
  std::int64_t all = 0, between_nodes = 0;
  bool operator==(const Bytes&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Bytes& bytes) {
    return out << bytes.all << " (" << bytes.between_nodes << " between nodes)";
  }
};
using BytesByTag = std::map<std::string, Bytes>;

inline BytesByTag bytes_sent(const Trace& trace) {
  BytesByTag result;
  for (const Record& record : trace.records) {
    if (record.tag != "parameters" && record.tag != "parameters in node" && record.tag != "gradients") continue;
    result[record.tag].all += static_cast<std::int64_t>(record.bytes_sent);
    result[record.tag].between_nodes += static_cast<std::int64_t>(record.bytes_between_nodes);
  }
  return result;
}

struct Ranks {  // data-parallel ones
  int count = 1, per_node = 1;
};

// In one gather or sum, in shares.
inline Bytes shares_sent(Algorithm algorithm, const Ranks& ranks) {
  const int nodes = ranks.count / ranks.per_node;
  if (nodes == 1) return {ranks.count - 1, 0};
  switch (algorithm) {
    case Algorithm::direct: return {ranks.count - 1, ranks.count - ranks.per_node};
    case Algorithm::two_level: return {(ranks.per_node - 1) * nodes + nodes - 1, nodes - 1};
    default: throw std::logic_error(std::string("There is no formula for ") + name(algorithm) + " between nodes.");
  }
}

// The trace says how units are cut, and by which algorithm shares of a size travel; everything else follows from the
// options.
inline BytesByTag zero_formula(const TrainingOptions& options, const Ranks& ranks, const Trace& trace,
                               const NamedUses& uses) {
  const ShardedParameters::Options& sharding = options.sharding;
  const std::int64_t microbatches = options.global_batch / options.micro_batch / ranks.count;
  const std::vector<std::int64_t> gathers =
      gathers_of_a_step(unit_groups(uses, trace, microbatches), trace.shares.size(), sharding.prefetch);
  BytesByTag result;
  const auto add = [&](const char* tag, std::int64_t times, std::int64_t share, QuantizedFormat format, DType dtype) {
    if (times == 0) return;
    const auto record =
        std::ranges::find_if(trace.records, [&](const Record& each) { return each.tag == tag && each.count == share; });
    const Bytes shares = shares_sent(record == trace.records.end() ? Algorithm::direct : record->method.algorithm, ranks);
    const std::int64_t bytes =
        format == QuantizedFormat::none ? share * static_cast<std::int64_t>(size_of(dtype)) : packed_bytes(format, share);
    result[tag].all += times * shares.all * bytes;
    result[tag].between_nodes += times * shares.between_nodes * bytes;
  };
  const bool second_copy = sharding.hpz_size > 1;
  for (std::size_t unit = 0; unit < trace.shares.size(); ++unit) {
    const std::int64_t share = trace.shares[unit];
    const std::int64_t over_all_ranks = sharding.zero == ZeroStage::none    ? 0
                                        : sharding.zero < ZeroStage::values ? 1
                                        : second_copy                       ? 1
                                                                            : gathers[unit];
    const std::int64_t sums = sharding.zero == ZeroStage::none ? 2 : sharding.zero < ZeroStage::gradients ? 1 : microbatches;
    add("parameters", over_all_ranks, share, sharding.qwz, sharding.dtype);
    add("gradients", sums, share, sharding.qgz, sharding.gradients());
    if (second_copy && gathers[unit] > 1) {
      const std::int64_t part = ranks.count * share / sharding.hpz_size * static_cast<std::int64_t>(size_of(sharding.dtype));
      result["parameters in node"].all += (gathers[unit] - 1) * (sharding.hpz_size - 1) * part;
    }
  }
  return result;
}

}  // namespace parity
