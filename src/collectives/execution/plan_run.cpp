#include "collectives/execution/plan_run.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Bytes of elements that local work reads between two looks at the links.
constexpr std::size_t bytes_between_looks = std::size_t{256} << 10;

// Local work of up to this many bytes is done at once, before the messages of its round make progress: to record it for
// later would take longer.
constexpr std::size_t bytes_at_once = std::size_t{4} << 10;

}  // namespace

PlanRun::PlanRun(const Execution& execution, const PlanVariant& variant, OperationPrecedence* precedence)
    : links_(*execution.links),
      first_lane_(execution.first_lane),
      variant_(variant),
      precedence_(precedence),
      memory_(execution, variant, host_space()),
      lanes_(variant.plan->lanes.size()) {
  if (precedence_ == nullptr) return;
  for (const Lane& lane : variant_.plan->lanes) {
    for (const Step& step : lane.steps) {
      if (step.kind == StepKind::send) precedence_->will_send(memory_.bytes(step.source));
    }
  }
}

PlanRun::~PlanRun() {
  for (LaneProgress& lane : lanes_) {
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
  if (moved_bytes_) precedence_->moved();
  if (!all) return moved;
  memory_.finish();
  finished_ = true;
  return true;
}

std::vector<int> PlanRun::awaited() const {
  std::vector<int> peers;
  for (const LaneProgress& lane : lanes_) {
    for (const Active& active : lane.active) peers.push_back(active.peer);
  }
  return peers;
}

bool PlanRun::lane_finished(std::size_t lane) const {
  return round_finished(lanes_[lane]) && lanes_[lane].round == variant_.plan->lanes[lane].round_ends.size();
}

// Moves the bytes that can be moved in a lane, and begins the next round when one is over. local_bytes: bytes of local work
// that may still be done before the next look at the links.
bool PlanRun::advance_lane(std::size_t lane, std::size_t& local_bytes) {
  LaneProgress& state = lanes_[lane];
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

// A link may report that another operation's bytes moved; the transfer says whether this one's did.
bool PlanRun::progress(Active& active) {
  Transfer& transfer = active.transfer;
  const bool sends = transfer.source != nullptr;
  // Some links do not count the bytes that they have started.
  const auto handed_over = [&] { return sends ? std::max(transfer.moved, transfer.started) : std::size_t{0}; };
  const std::size_t moved_before = transfer.moved;
  const std::size_t handed_before = handed_over();
  transfer.held = sends && precedence_ != nullptr && precedence_->held();
  const bool moved = active.link->progress(transfer);
  if (precedence_ == nullptr) return moved;
  const std::size_t handed = handed_over() - handed_before;
  if (handed > 0) precedence_->handed_over(handed);
  if (handed > 0 || transfer.moved != moved_before) moved_bytes_ = true;
  return moved;
}

void PlanRun::begin_round(std::size_t lane) {
  const Lane& plan = variant_.plan->lanes[lane];
  LaneProgress& state = lanes_[lane];
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
      Link& link = links_.to(step.peer, first_lane_ + static_cast<int>(lane));
      state.active.push_back({&link, transfer_of(step), step.peer});
    }
  }
  ++state.round;
}

Transfer PlanRun::transfer_of(const Step& step) const {
  Transfer transfer;
  transfer.dtype = variant_.wire;
  transfer.op = memory_.op();
  if (step.kind == StepKind::send) {
    transfer.source = memory_.at(step.source);
    transfer.bytes = memory_.bytes(step.source);
    transfer.background = precedence_ != nullptr && precedence_->is_background();
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
