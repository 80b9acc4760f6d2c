#include "stretto/overlap/pipeline.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "device/memory/range.hpp"
#include "device/stream/place_in_computation.hpp"
#include "overlap/pipeline/stage_messages.hpp"
#include "overlap/schedule/actions.hpp"
#include "stretto/device.hpp"
#include "transport/bootstrap/processes/pinning.hpp"

namespace stretto {
namespace {

// Receives that have begun ahead would wait for messages that never come, and the others for this rank: they must be told
// before the streams are destroyed, which wait for their tasks.
void give_up(const Communicator& stages, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool others_know =
      known != nullptr && (known->code() == ErrorCode::peer_lost || known->code() == ErrorCode::peer_gave_up);
  if (!others_know) stages.job().abort(error.what());
}

}  // namespace

Pipeline::Pipeline(const Communicator& stages, Schedule schedule, const Options& options)
    : stages_(stages), schedule_(std::move(schedule)) {
  check(schedule_);
  require(stages.size() == schedule_.stages, "A schedule of {} stages cannot run on {} ranks.", schedule_.stages,
          stages.size());
  if (stages.size() > 1) leave_shared_core();
  messages_ = std::make_unique<StageMessages>(stages, schedule_, options.tensor, options.overlap);
}

Pipeline::~Pipeline() = default;

void Pipeline::run(PipelineStage& stage, const Shape& message, DType dtype) {
  require(!is_window(schedule_), "Schedule {} is a window of steps that update the weights; run windows of it.",
          schedule_.name);
  windows_ = 1;
  run(schedule_, stage, message, dtype);
}

void Pipeline::run_windows(PipelineStage& stage, int windows, const Shape& message, DType dtype, int oldest) {
  require(is_window(schedule_), "Schedule {} leaves the update to its caller and is no window; run a step of it.",
          schedule_.name);
  windows_ = windows;
  run(repeated(schedule_, windows, oldest), stage, message, dtype);
}

void Pipeline::run(const Schedule& schedule, PipelineStage& stage, const Shape& message, DType dtype) {
  message_ = message;
  dtype_ = dtype;
  computed_.clear();
  follow(schedule, stage, message, dtype);
}

void Pipeline::run_forward(PipelineStage& stage, int microbatches, const Shape& message, DType dtype) {
  const std::vector<Computed> of_run = std::exchange(computed_, {});
  follow(forward_schedule(schedule_.stages, microbatches, schedule_.chunks, schedule_.placement), stage, message, dtype);
  computed_ = of_run;
}

void Pipeline::follow(const Schedule& schedule, PipelineStage& stage, const Shape& message, DType dtype) {
  try {
    messages_->begin(schedule, message, dtype);
    for (const ActionGroup& group : schedule.lists[static_cast<std::size_t>(stages_.rank())]) {
      const Action& action = group.front();
      if (is_message(action.kind)) {
        messages_->start(group);
      } else if (is_of_step(action.kind)) {
        compute(stage, action, {});
      } else {
        messages_->give_result(action, compute(stage, action, messages_->take_input(action)));
      }
    }
    messages_->finish();
  } catch (const std::exception& error) {
    give_up(stages_, error);
    messages_->abandon();
    throw;
  }
}

Tensor Pipeline::compute(PipelineStage& stage, const Action& action, Tensor input) {
  const ProfilerRange range([&] { return to_string(action); });
  const Trace::Span span = trace_ != nullptr ? trace_->part(to_string(action)) : Trace::Span();
  Computed& noted = computed_.emplace_back(Computed{.action = action, .begin = place_in_computation(), .end = {}});
  Tensor result = stage.compute(action, std::move(input));
  noted.end = place_in_computation();
  return result;
}

Pipeline::Times Pipeline::times() const {
  // Of each chunk, the seconds of its forwards, backwards, backward_weights, and of a message.
  const auto chunks = static_cast<std::size_t>(schedule_.chunks);
  std::vector<double> own(1 + 4 * chunks, 0);
  if (!computed_.empty()) own.front() = done_at(computed_.back().end) - done_at(computed_.front().begin);
  for (const Computed& each : computed_) {
    if (is_of_step(each.action.kind)) continue;
    const std::size_t kind = each.action.kind == ActionKind::forward           ? 0
                             : each.action.kind == ActionKind::backward_weight ? 2
                                                                               : 1;
    own[1 + 4 * static_cast<std::size_t>(each.action.chunk) + kind] += done_at(each.end) - done_at(each.begin);
  }
  const double message = computed_.empty() ? 0 : messages_->seconds_of_send(message_, dtype_);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) own[4 + 4 * chunk] = message;
  std::vector<double> all(own.size() * static_cast<std::size_t>(stages_.size()));
  stages_
      .gather(own.data(), all.data(), static_cast<std::int64_t>(own.size()), DType::f64, 0, Stream::inline_(),
              {.tag = "times of stages"})
      .wait();

  Times times;
  if (stages_.rank() != 0) return times;
  std::vector<ScheduleTimes> of_parts(static_cast<std::size_t>(schedule_.parts()));
  const double microbatches = static_cast<double>(windows_) * schedule_.all_microbatches();
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    const double* const its = &all[own.size() * static_cast<std::size_t>(stage)];
    times.measured = std::max(times.measured, its[0] / windows_);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const double* const sums = its + 1 + 4 * chunk;
      of_parts[static_cast<std::size_t>(schedule_.part_of(stage, static_cast<int>(chunk)))] = {
          sums[0] / microbatches, sums[1] / microbatches, sums[2] / microbatches, sums[3]};
    }
  }
  const ScheduleSimulation simulation = simulate(schedule_, of_parts);
  times.simulated = simulation.step * schedule_.steps;
  times.ideal = simulation.ideal * schedule_.steps;
  return times;
}

}  // namespace stretto
