#include "collectives/execution/plan_run.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Local work between two looks at the links, in bytes of elements read.
constexpr std::size_t bytes_between_looks = std::size_t{256} << 10;

// Work of up to so many bytes is done before the messages of its round are looked at, in less time than it takes to note it
// down.
constexpr std::size_t bytes_at_once = std::size_t{4} << 10;

}  // namespace

PlanRun::PlanRun(const Execution& execution)
    : run_(execution), memory_(run_, host_place()), lanes_(run_.plan->lanes.size()) {
  if (run_.precedence == nullptr) return;
  for (const Lane& lane : run_.plan->lanes) {
    for (const Step& step : lane.steps) {
      if (step.kind == StepKind::send) run_.precedence->will_send(memory_.bytes(step.source));
    }
  }
}

PlanRun::~PlanRun() {
  for (LaneState& lane : lanes_) {
    for (Active& active : lane.active) active.link->cancel(active.transfer);
  }
}

bool PlanRun::advance() {
  if (finished_) return false;
  bool moved = false;
  bool all = true;
  std::size_t local_bytes = bytes_between_looks;
  moved_bytes_ = false;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    moved |= advance_lane(lane, local_bytes);
    all &= lane_finished(lane);
  }
  if (moved_bytes_) run_.precedence->moved();
  if (!all) return moved;
  memory_.finish();
  finished_ = true;
  return true;
}

std::vector<int> PlanRun::awaited() const {
  std::vector<int> peers;
  for (const LaneState& lane : lanes_) {
    for (const Active& active : lane.active) peers.push_back(active.peer);
  }
  return peers;
}

bool PlanRun::lane_finished(std::size_t lane) const {
  return round_finished(lanes_[lane]) && lanes_[lane].round == run_.plan->lanes[lane].round_ends.size();
}

// Moves what can be moved in a lane, and begins the next round when one is over. local_bytes: how much local work may still
// be done before the links are looked at again.
bool PlanRun::advance_lane(std::size_t lane, std::size_t& local_bytes) {
  LaneState& state = lanes_[lane];
  bool moved = false;
  if (round_finished(state) && !lane_finished(lane)) {
    begin_round(lane);
    moved = true;
  }
  for (Active& active : state.active) moved |= progress(active);
  for (LocalWork& work : state.local) {
    if (local_bytes == 0) break;
    local_bytes -= std::min(local_bytes, work.advance(local_bytes));
    moved = true;
  }
  std::erase_if(state.local, [](const LocalWork& work) { return work.complete(); });
  std::erase_if(state.active, [](const Active& active) { return active.transfer.complete(); });
  return moved;
}

// What the link says may be true of another operation's bytes; whether this one's moved, its transfer knows.
bool PlanRun::progress(Active& active) {
  Transfer& transfer = active.transfer;
  const bool sends = transfer.source != nullptr;
  Precedence::Operation* const precedence = run_.precedence;
  // Not every link counts what it has started.
  const auto handed_over = [&] { return sends ? std::max(transfer.moved, transfer.started) : std::size_t{0}; };
  const std::size_t moved_before = transfer.moved;
  const std::size_t handed_before = handed_over();
  transfer.held = sends && precedence != nullptr && precedence->held();
  const bool moved = active.link->progress(transfer);
  if (precedence == nullptr) return moved;
  const std::size_t handed = handed_over() - handed_before;
  if (handed > 0) precedence->handed_over(handed);
  if (handed > 0 || transfer.moved != moved_before) moved_bytes_ = true;
  return moved;
}

void PlanRun::begin_round(std::size_t lane) {
  if (auto* const hold_up = before_each_round.load(std::memory_order_relaxed)) hold_up();
  const Lane& plan = run_.plan->lanes[lane];
  LaneState& state = lanes_[lane];
  const std::size_t begin = state.round == 0 ? 0 : plan.round_ends[state.round - 1];
  for (std::size_t i = begin; i < plan.round_ends[state.round]; ++i) {
    const Step& step = plan.steps[i];
    if (step.peer < 0) {
      LocalWork work = memory_.local_work_of(step);
      if (step.kind == StepKind::copy && work.source == work.destination) continue;  // in place
      if (work.bytes() > bytes_at_once) {
        state.local.push_back(work);
      } else {
        while (!work.complete()) work.advance(bytes_at_once);
      }
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
  transfer.op = memory_.op();
  if (step.kind == StepKind::send) {
    transfer.source = memory_.at(step.source);
    transfer.bytes = memory_.bytes(step.source);
    transfer.background = run_.precedence != nullptr && run_.precedence->is_background();
    return transfer;
  }
  transfer.destination = memory_.target(step.destination);
  transfer.bytes = memory_.bytes(step.destination);
  if (step.kind == StepKind::recv_reduce) {
    transfer.operand = memory_.at(step.source);
    transfer.divisor = memory_.divisor_of(step);
  }
  return transfer;
}

}  // namespace stretto
