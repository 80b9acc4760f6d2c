#include "collectives/plan_run.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "device/memory.hpp"

namespace stretto {
namespace {

// Local work between two looks at the links, in bytes of elements read.
constexpr std::size_t bytes_between_looks = std::size_t{256} << 10;

// Work of up to so many bytes is done before the messages of its round are looked at, in less time than it takes to note it
// down.
constexpr std::size_t bytes_at_once = std::size_t{4} << 10;

// Ranks and hops round with numbers of their own.
std::uint64_t seed_of(std::uint64_t seed, int rank, Hop hop) {
  return split_mixed(seed +
                     (static_cast<std::uint64_t>(rank) * hops + static_cast<std::uint64_t>(hop) + 1) * split_mix_step);
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
  for (int i = 0; i < quantized_formats; ++i) {
    const std::int64_t bytes = packed_bytes(static_cast<QuantizedFormat>(i), plan.packed_counts[i]);
    if (bytes > 0) packed_[i] = pool_allocate(static_cast<std::size_t>(bytes));
  }
  if (run_.precedence == nullptr) return;
  for (const Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) {
      if (step.kind == StepKind::send) run_.precedence->will_send(bytes(step.source));
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
  buffers_.finish(run_.caller, run_.plan->request);
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
      LocalWork work = local_work_of(step);
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
  transfer.op = op_;
  if (step.kind == StepKind::send) {
    transfer.source = at(step.source);
    transfer.bytes = bytes(step.source);
    transfer.background = run_.precedence != nullptr && run_.precedence->is_background();
    return transfer;
  }
  transfer.destination = target(step.destination);
  transfer.bytes = bytes(step.destination);
  if (step.kind == StepKind::recv_reduce) {
    transfer.operand = at(step.source);
    transfer.divisor = divisor_of(step);
  }
  return transfer;
}

LocalWork PlanRun::local_work_of(const Step& step) const {
  LocalWork work;
  work.kind = step.kind;
  work.source = at(step.source);
  work.destination = target(step.destination);
  work.count = step.destination.count;
  work.dtype = run_.caller.wire;
  work.op = op_;
  work.divisor = divisor_of(step);
  work.source_format = step.source.format;
  work.destination_format = step.destination.format;
  if (step.kind == StepKind::reduce) {
    work.vectors = static_cast<int>(step.source.count / work.count);
    work.distance = static_cast<std::int64_t>(bytes(step.destination));
  } else {
    work.vectors = step.vectors;
    work.distance = packed_bytes(step.source.format, step.apart);
  }
  if (step.kind != StepKind::quantize && step.kind != StepKind::requantize) return work;
  const Quantizing& how = *run_.quantizing;
  const Tensor& residual = how.residuals[static_cast<int>(step.hop)];
  work.quantizing.rounding = how.rounding;
  work.quantizing.seed = seed_of(how.seed, run_.plan->request.rank, step.hop);
  // Elements have the numbers of their places in the error state, whether there is one or not: then neither pieces nor parts
  // change what is drawn for them.
  work.quantizing.first_element = static_cast<std::uint64_t>(step.residual);
  if (residual.size() > 0) work.quantizing.residual = residual.data<float>() + step.residual;
  return work;
}

std::int64_t PlanRun::divisor_of(const Step& step) const {
  return step.finishes && run_.caller.op == ReduceOp::avg ? run_.plan->request.size : 1;
}

const std::byte* PlanRun::at(const Slice& slice) const {
  const std::size_t offset = bytes({slice.buffer, 0, slice.offset, slice.format});
  switch (slice.buffer) {
    case Buffer::input: return buffers_.input() + offset;
    case Buffer::output: return buffers_.output() + offset;
    case Buffer::scratch: return scratch_.get() + offset;
    case Buffer::packed: return packed_[static_cast<int>(slice.format)].get() + offset;
  }
  return nullptr;
}

std::size_t PlanRun::bytes(const Slice& slice) const {
  if (slice.buffer != Buffer::packed) return static_cast<std::size_t>(slice.count) * width_;
  return static_cast<std::size_t>(packed_bytes(slice.format, slice.count));
}

}  // namespace stretto
