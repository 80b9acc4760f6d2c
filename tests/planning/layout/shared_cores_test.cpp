#include "planning/layout/shared_cores.hpp"

#include <gtest/gtest.h>

namespace stretto {
namespace {

std::vector<ScheduleTimes> times_of_all_parts(const Schedule& schedule, const ScheduleTimes& times) {
  return std::vector<ScheduleTimes>(static_cast<std::size_t>(schedule.parts()), times);
}

// Of four stages on four cores the times are those of simulate(), whatever the schedule.
TEST(SharedCores, EnoughCoresAreCoresOfTheirOwn) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 4, 8, usual_chunks(kind));
    const std::vector<ScheduleTimes> times = times_of_all_parts(schedule, {1, 1.5, 0.75, 0});
    const double own = simulate(schedule, times).last_end;
    EXPECT_NEAR(seconds_on_shared_cores(schedule, times, {4, 4}), own, 1e-9) << name(kind);
    EXPECT_GT(seconds_on_shared_cores(schedule, times, {4, 2}), own * 1.5) << name(kind) << ", the control: two cores";
  }
}

// Four stages of GPipe with F = 1, an unsplit backward of 2 and 4 microbatches, on two cores: 48 seconds of work, of which
// the first forward, the first backward, and their counterparts at the ends have a core idle beside them.
TEST(SharedCores, ACoreIsIdleWhileOneStageComputesOnly) {
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, 4, 4, 1);
  const double seconds = seconds_on_shared_cores(schedule, times_of_all_parts(schedule, {1, 1, 1, 0}), {4, 2});
  // One stage alone: 1 s at the beginning, 1 + 2 s where forward turns into backward, 2 s at the end. Else two cores work.
  EXPECT_NEAR(seconds, 6 + (48 - 6) / 2.0, 1e-9);
}

TEST(SharedCores, OneCoreDoesTheWorkOfAllStages) {
  const Schedule schedule = make_schedule(ScheduleKind::one_forward_one_backward, 2, 6, 1);
  EXPECT_NEAR(seconds_on_shared_cores(schedule, times_of_all_parts(schedule, {1, 1, 1, 0}), {2, 1}), 36, 1e-9);
  // Stages of other machines don't share: each has half a core.
  EXPECT_NEAR(seconds_on_shared_cores(schedule, times_of_all_parts(schedule, {1, 1, 1, 0}), {1, 0.5}),
              2 * simulate(schedule).last_end, 1e-9);
}

TEST(SharedCores, MessagesLeaveCoresToOthers) {
  const Schedule schedule = make_schedule(ScheduleKind::one_forward_one_backward, 2, 1, 1);
  const std::vector<ScheduleTimes> times = times_of_all_parts(schedule, {1, 1, 1, 10});
  EXPECT_NEAR(seconds_on_shared_cores(schedule, times, {2, 1}), 6 + 20, 1e-9);
}

}  // namespace
}  // namespace stretto
