#pragma once
#include <functional>

#include "collectives/plan/collective_contract.hpp"
#include "core/fail.hpp"

namespace stretto {

// A way is a receiver's place relative to its sender. Messages of different ranks that correspond have the same way: a
// distance around all ranks or, in algorithms that pair ranks, the bits in which the two ranks differ.
struct Ways {
  int size;
  bool bits;  // true only if size is a power of two

  std::int32_t between(int sender, int receiver) const {
    return bits ? sender ^ receiver : (receiver - sender + size) % size;
  }
  int receiver(int sender, std::int32_t way) const { return bits ? sender ^ way : (sender + way) % size; }
  int sender(int receiver, std::int32_t way) const { return bits ? receiver ^ way : (receiver - way + size) % size; }
};

// A step without its memory.
struct LaneAction {
  static constexpr std::int32_t to_all = -1;          // instead of a way: to everybody
  static constexpr std::int32_t to_all_but_one = -2;  // to everybody but the owner of the source, which has the data already

  StepKind kind;
  bool by_link = false;  // a read whose bytes go over the link
  // The way from the sender to the receiver; 0 for local work. For a wait or read: from the peer. For a read_reduce: to the
  // owner of the destination.
  std::int32_t way;
  std::int64_t bytes;  // of one rank's vector, for a read_reduce or spread
  bool operator==(const LaneAction&) const = default;
};
struct LaneProgram {
  std::vector<LaneAction> actions;
  std::vector<std::uint32_t> round_ends;
  bool operator==(const LaneProgram&) const = default;
};
using LanePrograms = std::vector<LaneProgram>;  // by lane

class Compiler {
 public:
  Compiler(int size, const std::function<Plan(int)>& plan_of, std::int64_t element_bytes, bool in_place)
      : size_(size), plan_of_(plan_of), element_bytes_(element_bytes), in_place_(in_place) {}

  LanePrograms of_rank(int rank, const Ways& ways) const {
    const Plan plan = plan_of_(rank);
    require(plan.request.rank == rank && ranks_of(plan.request) == size_, "The plan for rank {} of {} is for rank {} of {}.",
            rank, size_, plan.request.rank, ranks_of(plan.request));
    LanePrograms programs(plan.lanes.size());
    for (std::size_t l = 0; l < plan.lanes.size(); ++l) {
      programs[l].round_ends.assign(plan.lanes[l].round_ends.begin(), plan.lanes[l].round_ends.end());
      for (const Step& step : plan.lanes[l].steps) programs[l].actions.push_back(action_of(plan.request, step, ways));
    }
    return programs;
  }

 private:
  LaneAction action_of(const PlanRequest& request, const Step& step, const Ways& ways) const {
    const bool pulls = request.method.algorithm == Algorithm::pull;
    switch (step.kind) {
      case StepKind::send: return {step.kind, false, ways.between(request.rank, step.peer), bytes_of(step.source)};
      case StepKind::recv:
      case StepKind::recv_reduce:
        return {step.kind, false, ways.between(step.peer, request.rank), bytes_of(step.destination)};
      case StepKind::copy: return {step.kind, false, 0, onto_itself(request, step) ? 0 : bytes_of(step.source)};
      case StepKind::reduce: return {step.kind, false, 0, (step.source.count - step.destination.count) * element_bytes_};
      case StepKind::quantize:
      case StepKind::dequantize:
      case StepKind::dequantize_reduce:
      case StepKind::requantize: return {step.kind, false, 0, step.vectors * step.source.count * element_bytes_};
      case StepKind::signal: return {step.kind, false, 0, 0};
      case StepKind::wait: return {step.kind, false, ways.between(step.peer, request.rank), 0};
      case StepKind::read: {
        const bool moves = step.peer != request.rank || !onto_itself(request, step);
        return {step.kind, pulls, ways.between(step.peer, request.rank), moves ? step.source.count * element_bytes_ : 0};
      }
      case StepKind::read_reduce: {
        const std::int32_t way = step.peer == everybody ? LaneAction::to_all : ways.between(request.rank, step.peer);
        return {step.kind, pulls, way, step.destination.count * element_bytes_};
      }
      case StepKind::copy_to_all: {
        const std::int32_t way = onto_itself(request, step) ? LaneAction::to_all_but_one : LaneAction::to_all;
        return {step.kind, pulls, way, step.destination.count * element_bytes_};
      }
    }
    return {};
  }
  std::int64_t bytes_of(const Slice& slice) const {
    return slice.buffer == Buffer::packed ? packed_bytes(slice.format, slice.count) : slice.count * element_bytes_;
  }
  bool onto_itself(const PlanRequest& request, const Step& step) const {
    if (step.source.buffer == step.destination.buffer) return step.source.offset == step.destination.offset;
    const auto is_callers = [](const Slice& slice) {
      return slice.buffer == Buffer::input || slice.buffer == Buffer::output;
    };
    if (!in_place_ || !is_callers(step.source) || !is_callers(step.destination)) return false;
    const CollectiveContract promise({Plan{.request = request}});
    const auto place = [&](const Slice& slice) {
      return slice.offset + (slice.buffer == Buffer::input ? promise.input_begin_in_place(request.rank)
                                                           : promise.output_begin_in_place(request.rank));
    };
    return place(step.source) == place(step.destination);
  }

  int size_;
  const std::function<Plan(int)>& plan_of_;
  std::int64_t element_bytes_;
  bool in_place_;
};

}  // namespace stretto
