#pragma once
#include <algorithm>
#include <utility>

#include "core/parts.hpp"
#include "stretto/plan.hpp"

namespace stretto {

inline Slice input(std::int64_t offset, std::int64_t count) { return {Buffer::input, offset, count}; }
inline Slice output(std::int64_t offset, std::int64_t count) { return {Buffer::output, offset, count}; }
inline Slice scratch(std::int64_t offset, std::int64_t count) { return {Buffer::scratch, offset, count}; }
inline Slice packed(QuantizedFormat format, std::int64_t offset, std::int64_t count) {
  return {Buffer::packed, offset, count, format};
}

// The places of all ranks' shares in a vector that holds them one after the other in rank order.
class Shares {
 public:
  static Shares balanced(std::int64_t total, int ranks) { return {ranks, total, -1, {}}; }
  static Shares equal(std::int64_t each, int ranks) { return {ranks, each * ranks, each, {}}; }
  static Shares listed(const std::vector<std::int64_t>& counts) {
    std::vector<std::int64_t> begins;
    begins.reserve(counts.size() + 1);
    begins.push_back(0);
    for (const std::int64_t count : counts) begins.push_back(begins.back() + count);
    const std::int64_t total = begins.back();
    return {static_cast<int>(counts.size()), total, -1, std::move(begins)};
  }
  // The shares of the request's collective: parts of one vector, or all ranks' shares together.
  static Shares of(const PlanRequest& request) {
    if (!request.counts.empty()) return listed(request.counts);
    return counts_shares(request.collective) ? equal(request.count, request.size) : balanced(request.count, request.size);
  }

  // `rank` may be ranks(), one after the last.
  std::int64_t begin(int rank) const {
    if (!begins_.empty()) return begins_[rank];
    return each_ >= 0 ? each_ * rank : part_begin(total_, ranks_, rank);
  }
  std::int64_t length(int rank) const { return begin(rank + 1) - begin(rank); }
  std::int64_t length(int first, int ranks) const { return begin(first + ranks) - begin(first); }
  std::int64_t total() const { return total_; }
  std::int64_t longest() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, length(rank));
    return most;
  }

 private:
  Shares(int ranks, std::int64_t total, std::int64_t each, std::vector<std::int64_t> begins)
      : ranks_(ranks), total_(total), each_(each), begins_(std::move(begins)) {}
  int ranks_;
  std::int64_t total_;
  std::int64_t each_;                 // -1: balanced or listed
  std::vector<std::int64_t> begins_;  // of listed shares; the last is the total
};

// The most elements that any rank puts into a packet.
inline std::int64_t packet_elements(const PlanRequest& request) {
  const Shares shares = Shares::of(request);
  const bool one_share = request.collective == Collective::all_gather || request.collective == Collective::gather;
  return one_share ? shares.longest() : shares.total();
}

// In place, the number of elements from the start of the output to the start of the input. A gather's input is its share of
// the output. A scatter's output is its share of the input, so the number is negative. Others have one buffer: 0.
inline std::int64_t input_behind_output(const PlanRequest& request) {
  if (!counts_shares(request.collective)) return 0;
  const std::int64_t share = Shares::of(request).begin(request.rank);
  const bool gathers = request.collective == Collective::all_gather || request.collective == Collective::gather;
  return gathers ? share : -share;
}

// The buffers of a plan that is a part of a larger one: its input, output and scratch begin at these offsets.
struct Placement {
  Slice input, output;  // counts do not matter
  std::int64_t scratch = 0;
  bool finishes = true;  // false: contributions are still missing when the part is done; its results are not final
};

// The calls by which a generator writes an algorithm. Steps go into the current round of the current lane; next_round() ends
// the round, next_lane() the lane.
class PlanBuilder {
 public:
  // expected_steps: the steps of the first lane to reserve memory for. Most plans of trees have no more than 8.
  explicit PlanBuilder(const PlanRequest& request, std::size_t expected_steps = 8) {
    plan_.request = request;
    add_lane(expected_steps);
  }

  void send(int peer, Slice source) { add({StepKind::send, false, peer, source, {}}); }
  void recv(int peer, Slice destination) { add({StepKind::recv, false, peer, {}, destination}); }
  // finishes: no contribution to `destination` is missing any more.
  void recv_reduce(int peer, Slice operand, Slice destination, bool finishes) {
    add({StepKind::recv_reduce, finishes, peer, operand, destination});
  }
  void copy(Slice source, Slice destination) { add({StepKind::copy, false, -1, source, destination}); }
  void reduce(Slice sources, Slice destination, bool finishes) {
    add({StepKind::reduce, finishes, -1, sources, destination});
  }
  void quantize(Slice source, Slice destination, Hop hop, std::int64_t residual) {
    add({StepKind::quantize, false, -1, source, destination, hop, residual});
  }
  void dequantize(Slice source, Slice destination) { add({StepKind::dequantize, false, -1, source, destination}); }
  // Takes several vectors: the first one, their number, and the distance from the start of one to the start of the next.
  void dequantize_reduce(Slice first, int vectors, std::int64_t apart, Slice destination, bool finishes) {
    add({StepKind::dequantize_reduce, finishes, -1, first, destination, Hop::contribution, 0, vectors, apart});
  }
  void requantize(Slice first, int vectors, std::int64_t apart, Slice destination, bool finishes, Hop hop,
                  std::int64_t residual) {
    add({StepKind::requantize, finishes, -1, first, destination, hop, residual, vectors, apart});
  }
  void signal() { add({StepKind::signal, false, -1, {}, {}}); }
  void wait(int peer) { add({StepKind::wait, false, peer, {}, {}}); }
  void read(int peer, Slice source, Slice destination) { add({StepKind::read, false, peer, source, destination}); }
  void copy_to_all(int owner, Slice source, Slice destination) {
    add({StepKind::copy_to_all, false, owner, source, destination});
  }
  // Reduces all ranks' contributions, so that none is missing any more. owner: the rank whose memory holds the destination,
  // or `everybody`.
  void read_reduce(Slice source, int owner, Slice destination) {
    add({StepKind::read_reduce, true, owner, source, destination});
  }
  void next_round() {
    Lane& lane = plan_.lanes.back();
    const std::size_t begun = lane.round_ends.empty() ? 0 : lane.round_ends.back();
    if (lane.steps.size() > begun) lane.round_ends.push_back(lane.steps.size());
  }
  void next_lane(std::size_t expected_steps = 8) {
    next_round();
    add_lane(expected_steps);
  }
  void use_scratch(std::int64_t count) { plan_.scratch_count = std::max(plan_.scratch_count, count); }
  void use_packed(QuantizedFormat format, std::int64_t count) { plan_.packed_counts[static_cast<int>(format)] = count; }
  void use_residual(Hop hop, std::int64_t count) { plan_.residual_counts[static_cast<int>(hop)] = count; }

  // Appends the rounds of a plan of one lane. rank_of(rank of the part) is that rank's number in the whole.
  template <class RankOf>
  void append(const Plan& part, RankOf rank_of, const Placement& placement) {
    next_round();
    const Lane& lane = part.lanes.front();
    std::size_t at = 0;
    for (const std::size_t end : lane.round_ends) {
      for (; at < end; ++at) {
        Step& step = plan_.lanes.back().steps.emplace_back(lane.steps[at]);
        if (step.peer >= 0) step.peer = rank_of(step.peer);
        step.finishes &= placement.finishes;
        place(step.source, placement);
        place(step.destination, placement);
        drop_if_idle(step);
      }
      next_round();
    }
    plan_.scratch_count = std::max(plan_.scratch_count, placement.scratch + part.scratch_count);
  }

  // A round of steps, whose scratch begins at the given offset.
  void append_round(const std::vector<Step>& steps, std::int64_t scratch_begin) {
    next_round();
    for (const Step& each : steps) {
      Step& step = plan_.lanes.back().steps.emplace_back(each);
      if (step.source.buffer == Buffer::scratch) step.source.offset += scratch_begin;
      if (step.destination.buffer == Buffer::scratch) step.destination.offset += scratch_begin;
      drop_if_idle(step);
    }
    next_round();
  }

  Plan finish() {
    next_round();
    return std::move(plan_);
  }

 private:
  void add_lane(std::size_t expected_steps) {
    Lane& lane = plan_.lanes.emplace_back();
    lane.steps.reserve(expected_steps);
    lane.round_ends.reserve(expected_steps);
  }
  static void place(Slice& slice, const Placement& placement) {
    if (slice.buffer == Buffer::scratch) {
      slice.offset += placement.scratch;
      return;
    }
    const Slice& base = slice.buffer == Buffer::input ? placement.input : placement.output;
    slice.buffer = base.buffer;
    slice.offset += base.offset;
  }
  void add(const Step& step) { drop_if_idle(plan_.lanes.back().steps.emplace_back(step)); }
  // Drops the last step if it has no elements, or if it copies a vector onto itself, as a part of a plan may.
  void drop_if_idle(const Step& step) {
    const std::int64_t count = step.kind == StepKind::send ? step.source.count : step.destination.count;
    const bool orders = step.kind == StepKind::signal || step.kind == StepKind::wait;
    const bool stays = step.kind == StepKind::copy && step.source.buffer == step.destination.buffer &&
                       step.source.offset == step.destination.offset;
    if (stays || (count == 0 && !orders)) plan_.lanes.back().steps.pop_back();
  }

  Plan plan_;
};

}  // namespace stretto
