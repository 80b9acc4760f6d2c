// Steps whose times are computed by hand.
#include "planning/step/step_simulation.hpp"

#include <gmock/gmock.h>

#include "stretto/error.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using Stages = std::vector<LinkSeconds>;

StepTask computing(double seconds, std::vector<StepDependency> after = {}) {
  StepTask task;
  task.seconds = seconds;
  task.after = std::move(after);
  return task;
}

StepTask communicating(int node, Stages stages, std::vector<StepDependency> after = {},
                       Priority priority = Priority::normal) {
  StepTask task;
  task.node = node;
  task.communicates = true;
  task.stages = std::move(stages);
  task.after = std::move(after);
  task.priority = priority;
  return task;
}

double seconds(const std::vector<StepTask>& tasks) { return simulate_step(tasks).seconds; }

// The begin and end of the task in the last simulated step, in seconds since that step's first computation began.
std::pair<double, double> times(const std::vector<StepTask>& tasks, int task) {
  const StepTimeline timeline = simulate_step(tasks, {.timeline = true});
  std::pair<double, double> found{1e9, -1e9};
  for (const StepTimeline::Piece& piece : timeline.pieces) {
    if (piece.step != 1 || piece.task != task) continue;
    found = {std::min(found.first, piece.begin - timeline.last_begin),
             std::max(found.second, piece.end - timeline.last_begin)};
  }
  return found;
}

TEST(StepSimulation, WaitsForWhatItNeedsAndNotForMore) {
  EXPECT_DOUBLE_EQ(seconds({computing(1), communicating(1, {{2, 0}}, {{0}}), computing(3, {{1}})}), 6);
  EXPECT_DOUBLE_EQ(seconds({computing(1), communicating(1, {{2, 0}}, {{0}}), computing(3)}), 4);  // no task waits for it
  EXPECT_DOUBLE_EQ(seconds({computing(1), communicating(1, {{2, 0}}, {{0}}), computing(3), computing(1, {{1}})}), 5);
  EXPECT_DOUBLE_EQ(seconds({computing(1), communicating(1, {{5, 0}}, {{0}}), computing(3), computing(1, {{1}})}), 7);
}

TEST(StepSimulation, LinksInsideAndBetweenWorkAtTheSameTime) {
  const Stages way{{1, 0}, {0, 1}};
  EXPECT_DOUBLE_EQ(seconds({computing(0), communicating(1, way, {{0}}), computing(0, {{1}})}), 2);
  // Chunks follow each other: each adds 1, the time of the slower link.
  const auto chunk = [&] { return communicating(1, way, {{0}}); };
  EXPECT_DOUBLE_EQ(seconds({computing(0), chunk(), chunk(), chunk(), computing(0.5, {{1}, {2}, {3}})}), 4.5);
  // A stage may occupy both links, each for its own time.
  EXPECT_DOUBLE_EQ(seconds({computing(1), communicating(1, {{0.5, 2}, {1, 0}}, {{0}}), computing(0, {{1}})}), 4);
}

TEST(StepSimulation, StepsFollowEachOtherInSteadyState) {
  // The next step's first computation hides 2 of one step's communication.
  const auto postponed = [](double gather) {
    return std::vector<StepTask>{computing(2), computing(1, {{2, 1}}), communicating(2, {{gather, 0}}, {{1}})};
  };
  EXPECT_DOUBLE_EQ(seconds(postponed(2)), 3);
  EXPECT_DOUBLE_EQ(seconds(postponed(3)), 4);
  // A later step waits for the communication, so the link limits the steady state.
  EXPECT_DOUBLE_EQ(seconds({computing(1, {{2, 1}}), computing(1), communicating(2, {{0, 5}}, {{0}})}), 6);
  EXPECT_DOUBLE_EQ(seconds({computing(0.5, {{2, 1}}), computing(1), communicating(2, {{0, 5}})}), 5);
}

TEST(StepSimulation, TheUrgentOvertakeBetweenChunks) {
  std::vector<StepTask> tasks;
  for (int chunk = 0; chunk < 4; ++chunk) tasks.push_back(communicating(0, {{1, 0}}, {{6, 1}}, Priority::background));
  tasks.push_back(computing(1.5));
  tasks.push_back(communicating(5, {{1, 0}}, {{4}}, Priority::urgent));
  tasks.push_back(computing(0, {{0}, {1}, {2}, {3}, {5}}));
  EXPECT_DOUBLE_EQ(seconds(tasks), 5);
  EXPECT_EQ(times(tasks, 5), std::pair(2.0, 3.0));
  EXPECT_EQ(times(tasks, 3), std::pair(4.0, 5.0));
  tasks[5].priority = Priority::background;
  EXPECT_EQ(times(tasks, 5), std::pair(4.0, 5.0));
}

TEST(StepSimulation, ComputingIsSlowerBesideCommunication) {
  const std::vector<StepTask> tasks{communicating(0, {{2, 0}}, {{1, 1}}), computing(4), computing(0, {{0}})};
  EXPECT_DOUBLE_EQ(simulate_step(tasks).seconds, 4);
  // Computing runs at two thirds of its speed for 2 s, then at full speed.
  EXPECT_NEAR(simulate_step(tasks, {.slowdown = 0.5}).seconds, 2 + (4 - 2 / 1.5), 1e-12);
}

TEST(StepSimulation, TellsHowLongEachIsBusy) {
  const StepTimeline timeline =
      simulate_step({computing(1), communicating(1, {{2, 0.5}, {0, 3}}, {{0}}), computing(3, {{1}})}, {.timeline = true});
  EXPECT_DOUBLE_EQ(timeline.seconds, 9);
  EXPECT_THAT(timeline.busy, testing::ElementsAre(4, 2, 3.5));
  EXPECT_DOUBLE_EQ(timeline.busiest_link(), 3.5);
  EXPECT_EQ(timeline.pieces.size(), 10U);
}

TEST(StepSimulation, RefusesWhatNeverEnds) {
  expect_refusal([] { simulate_step({computing(1, {{1}}), communicating(1, {{1, 0}}, {{0}})}); }, "wait for each other");
  expect_refusal([] { simulate_step({computing(1, {{1}}), computing(1)}); }, "wait for each other");
  expect_refusal([] { simulate_step({computing(1, {{7}})}); }, "waits for task 7");
  expect_refusal([] { simulate_step({communicating(0, {{1, 0}})}); }, "computes nothing");
}

}  // namespace
}  // namespace stretto
