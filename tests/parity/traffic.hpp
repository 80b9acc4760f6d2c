#pragma once
#include <numeric>

#include "../collectives/plans/formulas.hpp"
#include "parity.hpp"

// The traffic of a training step against closed formulas.
namespace parity {

// The bytes that a rank sends in a step, by group; "dp parameters" counts as "dp". Without norm and loss.
inline std::map<std::string, std::int64_t> sent_by(const std::vector<Trace>& traces) {
  std::map<std::string, std::int64_t> sent;
  for (const Trace& trace : traces) {
    for (const Record& record : trace.records) {
      if (record.tag == "gradient norm" || record.tag == "loss") continue;
      const std::string group = record.group.substr(0, record.group.find(' '));
      sent[group] += static_cast<std::int64_t>(record.bytes_sent);
    }
  }
  for (auto& entry : sent) entry.second /= static_cast<std::int64_t>(traces.size());
  return sent;
}

struct Expected {
  std::int64_t operations;  // number on each rank in a step; 0: at least two
  std::int64_t elements;    // sum over these operations
  bool shares;              // the tensors are large enough to travel in shares
};

inline std::map<std::string, Expected> expected_traffic(Layout layout, const TrainingOptions& options,
                                                        const std::vector<std::int64_t>& shares) {
  std::map<std::string, Expected> result;
  const std::int64_t microbatches = options.global_batch / options.micro_batch / layout.data;
  const std::int64_t tokens = options.micro_batch * options.model.sequence;
  const auto activations = [&](std::int64_t times) {
    return Expected{times * microbatches, times * microbatches * tokens * options.model.hidden, true};
  };
  if (layout.tensor > 1) {
    // Two sums in forward and two in backward for each layer: 8 b s h (t-1)/t elements a rank; and one at each end of the
    // model.
    result["row-parallel forward"] = activations(2 * options.model.layers);
    result["column-parallel backward"] = activations(2 * options.model.layers + 1);
    result["embedding forward"] = activations(1);
    result["cross entropy max"] = {microbatches, microbatches * tokens, false};
    result["cross entropy sums"] = {microbatches, microbatches * 2 * tokens, false};
  }
  if (layout.ranks() > 1) result["gradient norm"] = {1, 1, false};
  if (layout.data > 1) {
    // A reduce-scatter of all gradients, and an all-gather of all gradients or parameters: 2 (N-1)/N Psi e.
    const std::int64_t padded_elements = layout.data * std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
    result["gradients"] = {0, 2 * padded_elements, false};
    result["loss"] = {1, 1, false};
  }
  return result;
}

// Elements of the vector that travels: of a reduce-scatter or an all-gather the caller passes those of one rank's share.
inline std::int64_t whole_count(const Record& record) {
  const bool of_a_share = record.collective == Collective::reduce_scatter || record.collective == Collective::all_gather;
  return of_a_share ? record.count * record.group_size : record.count;
}

inline std::int64_t formula_of(const Record& record) {
  switch (record.collective) {
    case Collective::reduce_scatter:
      return formulas::reduce_scatter(record.method.algorithm, record.group_size, whole_count(record));
    case Collective::all_gather:
      return formulas::all_gather(record.method.algorithm, record.group_size, whole_count(record));
    default: return formulas::all_reduce(record.method.algorithm, record.group_size, record.count);
  }
}

// Describes the first divergence of a step's records from the formulas; empty if there is none. Every byte that any rank
// sent is accounted for.
inline std::string traffic_divergence(Layout layout, const TrainingOptions& options, const std::vector<Trace>& traces) {
  std::map<std::string, std::int64_t> sent;     // bytes sent by all ranks, by tag
  std::map<std::string, std::int64_t> formula;  // expected bytes times the size of the group, by tag
  std::map<std::string, std::int64_t> group_size;
  for (const Trace& trace : traces) {
    std::map<std::string, Expected> left = expected_traffic(layout, options, trace.shares);
    std::map<std::string, std::int64_t> operations;
    for (const Record& record : trace.records) {
      const std::string tag = record.tag == "parameters" ? "gradients" : record.tag;
      const auto expected = left.find(tag);
      if (expected == left.end()) return "Nobody expects " + record.to_string();
      const bool whole =
          record.method.algorithm == Algorithm::recursive_doubling || record.method.algorithm == Algorithm::one_shot;
      if (expected->second.shares && whole) return "Whole vectors travel in " + record.to_string();
      expected->second.elements -= whole_count(record);
      ++operations[tag];
      sent[tag] += static_cast<std::int64_t>(record.bytes_sent);
      formula[tag] += formula_of(record) * static_cast<std::int64_t>(size_of(record.dtype));
      group_size[tag] = record.group_size;
    }
    for (const auto& [tag, expected] : left) {
      const bool as_many = expected.operations == 0 ? operations[tag] >= 2 : operations[tag] == expected.operations;
      if (expected.elements != 0 || !as_many) {
        return fmt::format("{} operations '{}', {} elements short of the formula", operations[tag], tag, expected.elements);
      }
    }
  }
  for (const auto& [tag, bytes] : sent) {
    if (bytes * group_size[tag] != formula[tag]) {
      return fmt::format("'{}' sent {} bytes; the formula says {}", tag, bytes, formula[tag] / group_size[tag]);
    }
  }
  return {};
}

}  // namespace parity
