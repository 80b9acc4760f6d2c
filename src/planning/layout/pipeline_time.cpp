#include "planning/layout/pipeline_time.hpp"

#include <algorithm>

#include "stretto/models/training_options.hpp"

namespace stretto {

bool PipelineShape::splits() const {
  return kind == ScheduleKind::zb_h1 || kind == ScheduleKind::zb_h2 || kind == ScheduleKind::zb_v;
}

Schedule PipelineShape::geometry() const {
  const ChunkPlacement placement = kind == ScheduleKind::zb_v ? ChunkPlacement::v_shaped : ChunkPlacement::round_robin;
  return {name(kind), stages, microbatches, chunks, placement, {}};
}

// At most 2 p - 1 microbatches are under way (zb-h2, 1f1b-eager), after which stages repeat themselves.
PipelineShape PipelineShape::beginning() const {
  const int enough = 3 * stages + microbatches % stages;
  if (kind == ScheduleKind::gpipe || microbatches <= enough + stages) return *this;
  PipelineShape shape = *this;
  shape.microbatches = enough;
  return shape;
}

PipelineTime least_pipeline_time(const PipelineShape& shape, const std::vector<PipelinePart>& parts) {
  const Schedule geometry = shape.geometry();
  std::vector<double> computes(static_cast<std::size_t>(shape.stages)), before(computes.size(), -1);
  // The seconds of a microbatch on its way forward to this part and back from it. Stages with gradients of weights left
  // compute these meanwhile.
  double path = 0;
  for (int part = 0; part < geometry.parts(); ++part) {
    const auto stage = static_cast<std::size_t>(geometry.stage_of(part));
    const PipelinePart& its = parts[static_cast<std::size_t>(part)];
    computes[stage] += its.time.all().all();
    if (before[stage] < 0) before[stage] = shape.window != nullptr ? 0 : path;
    path += its.time.forward.all() + (shape.splits() ? 0 : its.time.input.all() + its.time.weight.all());
  }
  PipelineTime least;
  for (std::size_t stage = 0; stage < computes.size(); ++stage) {
    const double its = shape.microbatches * computes[stage];
    least.all += its;
    if (its > least.busiest) {
      least.busiest = its;
      least.busiest_stage = static_cast<int>(stage);
    }
    least.seconds = std::max(least.seconds, its + before[stage]);
  }
  return least;
}

const Schedule& Schedules::of(const PipelineShape& shape) {
  std::unique_ptr<Schedule>& known = known_[shape];
  if (!known) {
    known = std::make_unique<Schedule>(shape.window != nullptr
                                           ? shape.window->make(shape.stages, shape.microbatches)
                                           : make_schedule(shape.kind, shape.stages, shape.microbatches, shape.chunks));
  }
  return *known;
}

const std::vector<int>& Schedules::versions(const PipelineShape& shape) {
  std::vector<int>& known = versions_[shape];
  for (int stage = static_cast<int>(known.size()); stage < shape.stages; ++stage) {
    known.push_back(versions_of(of(shape), stage));
  }
  return known;
}

double Schedules::seconds(const PipelineShape& shape, const std::vector<ScheduleTimes>& times,
                          const StagesOnCores& sharing) {
  const Schedule& schedule = of(shape);
  const bool shares = sharing.at_a_time < sharing.stages;
  if (shape.window == nullptr) {
    return shares ? seconds_on_shared_cores(schedule, times, sharing) : simulate(schedule, times).last_end;
  }
  if (!shares) return simulate(schedule, times).step * schedule.steps;
  return seconds_on_shared_cores(repeated(schedule, 3), times, sharing) -
         seconds_on_shared_cores(repeated(schedule, 2), times, sharing);
}

PipelineTime Schedules::time(const PipelineShape& shape, const std::vector<PipelinePart>& parts,
                             const StagesOnCores& sharing) {
  PipelineTime time = least_pipeline_time(shape, parts);
  if (shape.stages == 1) {
    time.seconds /= std::min(1.0, sharing.at_a_time);
    return time;
  }
  std::vector<ScheduleTimes> times;
  times.reserve(parts.size());
  for (const PipelinePart& part : parts) {
    times.push_back({part.time.forward.all(), part.time.input.all(), part.time.weight.all(), part.message});
  }
  PipelineShape beginning = shape.beginning();
  time.seconds = seconds(beginning, times, sharing);
  const int left = shape.microbatches - beginning.microbatches;
  if (left == 0) return time;
  beginning.microbatches += shape.stages;
  const double pace = seconds(beginning, times, sharing) - time.seconds;
  time.seconds += pace * left / shape.stages;
  return time;
}

}  // namespace stretto
