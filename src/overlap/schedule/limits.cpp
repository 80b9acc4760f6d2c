#include "overlap/schedule/limits.hpp"

#include "core/fail.hpp"

namespace stretto {

void require_sizes(const Schedule& schedule) {
  require(schedule.stages >= 1 && schedule.stages <= 4096, "A pipeline of {} stages cannot be; give 1 to 4096.",
          schedule.stages);
  require(schedule.chunks >= 1 && schedule.chunks <= 4096, "A stage of {} chunks cannot be; give 1 to 4096.",
          schedule.chunks);
  require(schedule.microbatches >= 1, "A step of {} microbatches cannot be; give at least 1.", schedule.microbatches);
  require(schedule.steps >= 1, "A window of {} steps cannot be; give at least 1.", schedule.steps);
  require(std::int64_t{schedule.microbatches} * schedule.steps <= (1 << 22) / schedule.parts(),
          "{} microbatches through {} stages x {} chunks are more than 2^22 computations; give fewer.",
          std::int64_t{schedule.microbatches} * schedule.steps, schedule.stages, schedule.chunks);
  require(schedule.placement != ChunkPlacement::v_shaped || schedule.chunks == 2,
          "A V-shaped placement has 2 chunks a stage, not {}.", schedule.chunks);
}

}  // namespace stretto
