#include "collectives/plan_run.hpp"

#include <algorithm>
#include <cstring>

#include "device/memory.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// What is copied at a time: a long copy must not keep the links from being served.
constexpr std::size_t copied_at_once = std::size_t{256} << 10;

bool copy_some(Transfer& transfer) {
  const std::size_t bytes = std::min(copied_at_once, transfer.bytes - transfer.moved);
  std::memcpy(transfer.destination + transfer.moved, transfer.source + transfer.moved, bytes);
  transfer.moved += bytes;
  return true;
}

}  // namespace

PlanRun::PlanRun(const Execution& execution)
    : run_(execution),
      op_(combining(run_.caller.op)),
      width_(size_of(run_.caller.wire)),
      buffers_(run_.caller, run_.plan->request, pool_allocate),
      lanes_(run_.plan->lanes.size()) {
  const Plan& plan = *run_.plan;
  if (plan.scratch_count > 0) scratch_ = pool_allocate(static_cast<std::size_t>(plan.scratch_count) * width_);
}

PlanRun::~PlanRun() {
  for (LaneState& lane : lanes_) {
    for (Active& active : lane.active) {
      if (active.link != nullptr) active.link->cancel(active.transfer);
    }
  }
}

bool PlanRun::advance() {
  if (finished_) return false;
  bool moved = false;
  bool all = true;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    moved |= advance_lane(lane);
    all &= lane_finished(lane);
  }
  if (!all) return moved;
  buffers_.finish(run_.caller, run_.plan->request);
  finished_ = true;
  return true;
}

std::vector<int> PlanRun::awaited() const {
  std::vector<int> peers;
  for (const LaneState& lane : lanes_) {
    for (const Active& active : lane.active) {
      if (active.link != nullptr) peers.push_back(active.peer);
    }
  }
  return peers;
}

bool PlanRun::lane_finished(std::size_t lane) const {
  return lanes_[lane].active.empty() && lanes_[lane].round == run_.plan->lanes[lane].round_ends.size();
}

// Moves what can be moved in a lane, and begins the next round when one is over.
bool PlanRun::advance_lane(std::size_t lane) {
  LaneState& state = lanes_[lane];
  bool moved = false;
  if (state.active.empty() && !lane_finished(lane)) {
    begin_round(lane);
    moved = true;
  }
  for (Active& active : state.active) {
    moved |= active.link != nullptr ? active.link->progress(active.transfer) : copy_some(active.transfer);
  }
  std::erase_if(state.active, [](const Active& active) { return active.transfer.complete(); });
  return moved;
}

void PlanRun::begin_round(std::size_t lane) {
  if (auto* const hold_up = before_each_round.load(std::memory_order_relaxed)) hold_up();
  const Lane& plan = run_.plan->lanes[lane];
  LaneState& state = lanes_[lane];
  const std::size_t begin = state.round == 0 ? 0 : plan.round_ends[state.round - 1];
  for (std::size_t i = begin; i < plan.round_ends[state.round]; ++i) {
    const Step& step = plan.steps[i];
    if (step.kind == StepKind::copy) {
      const Transfer transfer = transfer_of(step);
      if (transfer.source != transfer.destination && transfer.bytes > 0) state.active.push_back({nullptr, transfer, -1});
    } else if (step.kind == StepKind::reduce) {
      reduce(step);
    } else {
      Link& link = run_.links->to(step.peer, run_.first_lane + static_cast<int>(lane));
      state.active.push_back({&link, transfer_of(step), step.peer});
    }
  }
  ++state.round;
}

Transfer PlanRun::transfer_of(const Step& step) const {
  Transfer transfer;
  transfer.dtype = run_.caller.wire;
  transfer.op = op_;
  if (step.kind == StepKind::send) {
    transfer.source = at(step.source);
    transfer.bytes = bytes(step.source);
    return transfer;
  }
  transfer.destination = target(step.destination);
  transfer.bytes = bytes(step.destination);
  if (step.kind == StepKind::copy) transfer.source = at(step.source);  // equal in place
  if (step.kind == StepKind::recv_reduce) {
    transfer.operand = at(step.source);
    transfer.divisor = divisor_of(step);
  }
  return transfer;
}

void PlanRun::reduce(const Step& step) const {
  std::vector<const void*> sources;
  const std::byte* const begin = at(step.source);
  for (std::size_t at = 0; at < bytes(step.source); at += bytes(step.destination)) sources.push_back(begin + at);
  kernels::reduce_all(op_, run_.caller.wire, sources.data(), static_cast<int>(sources.size()), target(step.destination),
                      step.destination.count, divisor_of(step));
}

std::int64_t PlanRun::divisor_of(const Step& step) const {
  return step.finishes && run_.caller.op == ReduceOp::avg ? run_.plan->request.size : 1;
}

const std::byte* PlanRun::at(const Slice& slice) const {
  const std::byte* const begin = slice.buffer == Buffer::input    ? buffers_.input()
                                 : slice.buffer == Buffer::output ? buffers_.output()
                                                                  : scratch_.get();
  return begin + static_cast<std::size_t>(slice.offset) * width_;
}

}  // namespace stretto
