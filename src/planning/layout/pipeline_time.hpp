#pragma once
#include <map>
#include <memory>
#include <vector>

#include "planning/layout/layer_time.hpp"
#include "planning/layout/shared_cores.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {

// The numbers that a generator's schedule is made of.
struct PipelineShape {
  ScheduleKind kind = ScheduleKind::one_forward_one_backward;
  int stages = 1, microbatches = 1, chunks = 1;
  const WindowKind* window = nullptr;  // an element of all_window_kinds(): a schedule without a flush, instead of `kind`
  auto operator<=>(const PipelineShape&) const = default;  // NOLINT(modernize-use-nullptr): none is here
  bool splits() const;                                     // has backward_weight
  // Without lists: where the parts lie.
  Schedule geometry() const;
  // With fewer microbatches, if there are many: stages have as many under way, and go on as regularly. The rest differs from
  // this shape's microbatches by a multiple of its stages.
  PipelineShape beginning() const;
};

// The seconds of a part of the model for a microbatch. backward counts both halves.
struct PipelinePart {
  PartTime time;
  double message = 0;  // that it sends
};

struct PipelineTime {
  double seconds = 0;  // from the first computation to the last of all stages; of a window, while it repeats
  double busiest = 0;  // the seconds of the stage that computes longest, if it never waited
  int busiest_stage = 0;
  double all = 0;  // the seconds of all stages together
};

// A lower bound for every schedule of these parts: a stage can begin only when the first microbatch has come to it, and then
// computes all of its microbatches without waiting.
PipelineTime least_pipeline_time(const PipelineShape& shape, const std::vector<PipelinePart>& parts);

// Makes schedules, and remembers them.
class Schedules {
 public:
  const Schedule& of(const PipelineShape& shape);
  // versions_of() each stage.
  const std::vector<int>& versions(const PipelineShape& shape);
  // Simulates the schedule; a long one by its beginning.
  PipelineTime time(const PipelineShape& shape, const std::vector<PipelinePart>& parts, const StagesOnCores& sharing);

 private:
  double seconds(const PipelineShape& shape, const std::vector<ScheduleTimes>& times, const StagesOnCores& sharing);
  std::map<PipelineShape, std::unique_ptr<Schedule>> known_;
  std::map<PipelineShape, std::vector<int>> versions_;
};

}  // namespace stretto
