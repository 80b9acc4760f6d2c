#pragma once
#include "stretto/plan.hpp"

namespace stretto {

inline Slice input(std::int64_t offset, std::int64_t count) { return {Buffer::input, offset, count}; }
inline Slice output(std::int64_t offset, std::int64_t count) { return {Buffer::output, offset, count}; }
inline Slice scratch(std::int64_t offset, std::int64_t count) { return {Buffer::scratch, offset, count}; }

// The words in which a generator tells its algorithm. Steps go into the current round of the only lane; next_round() ends
// it.
class PlanBuilder {
 public:
  explicit PlanBuilder(const PlanRequest& request) {
    plan_.collective = request.collective;
    plan_.algorithm = request.algorithm;
    plan_.rank = request.rank;
    plan_.size = request.size;
    plan_.root = request.root;
    plan_.count = request.count;
    plan_.lanes.resize(1);
  }

  void send(int peer, Slice source) { add({StepKind::send, peer, source, {}}); }
  void recv(int peer, Slice destination) { add({StepKind::recv, peer, {}, destination}); }
  void recv_reduce(int peer, Slice operand, Slice destination) { add({StepKind::recv_reduce, peer, operand, destination}); }
  void copy(Slice source, Slice destination) { add({StepKind::copy, -1, source, destination}); }
  void next_round() {
    Lane& lane = plan_.lanes.back();
    const std::size_t begun = lane.round_ends.empty() ? 0 : lane.round_ends.back();
    if (lane.steps.size() > begun) lane.round_ends.push_back(lane.steps.size());
  }
  void use_scratch(std::int64_t count) { plan_.scratch_count = count; }

  Plan finish() {
    next_round();
    return std::move(plan_);
  }

 private:
  void add(const Step& step) {
    const std::int64_t count = step.kind == StepKind::send ? step.source.count : step.destination.count;
    if (count > 0) plan_.lanes.back().steps.push_back(step);
  }

  Plan plan_;
};

// The balanced cut of count elements into parts: part i begins here, part i + 1 where it ends. Sizes differ by at most one.
inline std::int64_t part_begin(std::int64_t count, int parts, int i) {
  const std::int64_t quotient = count / parts;
  const std::int64_t rest = count % parts;
  return quotient * i + (i < rest ? i : rest);
}

}  // namespace stretto
