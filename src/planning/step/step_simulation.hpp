#pragma once
#include <array>
#include <vector>

#include "stretto/planning/planner.hpp"

// Predicts how long a repeated training step takes, by a small discrete-event simulation. It simulates one rank, because
// all ranks do the same (SPMD).
//
// The model. A rank computes one task at a time, in the order of the tasks, and waits if the next task is not ready.
// Links inside nodes and links between nodes are two resources that work at the same time. Each resource serves one
// stage at a time, without interruption. Among the waiting stages, it selects by the highest priority, then by the
// earliest step, by the node whose tasks come first, by the earliest stage, and by the earliest chunk. A more urgent
// collective can thus overtake another collective between two chunks. A stage may occupy both resources, each for its
// own time; the task's next stage begins when both times are over.
namespace stretto {

enum class StepResource : std::uint8_t { compute, inside, between };
const char* name(StepResource resource);

struct StepTask {
  int node = 0;        // index in the StepGraph. The tasks of one node are its chunks, and are consecutive
  double seconds = 0;  // seconds of computation
  bool communicates = false;
  bool postponed = false;           // the part of a node's communication that comes after the node's update
  std::vector<LinkSeconds> stages;  // of communication; they run one after the other
  Priority priority = Priority::normal;
  std::vector<StepDependency> after;  // here, StepDependency::node is the index of a task
};

struct StepTimeline {
  double seconds = 0;               // of one step, in steady state
  std::array<double, 3> busy = {};  // seconds for which each resource is busy in one step, without slowdown
  struct Piece {
    int step = 0;  // 0 or 1: one of the last two simulated steps
    int task = 0, stage = 0;
    StepResource resource = StepResource::compute;
    double begin = 0, end = 0;  // seconds since the first simulated step began
  };
  std::vector<Piece> pieces;  // in the order of `end`; empty without StepSimulationOptions::timeline
  double last_begin = 0;      // the time at which the first computation of the last step began
  double computing() const { return busy[0]; }
  double busiest_link() const { return busy[1] > busy[2] ? busy[1] : busy[2]; }
};

struct StepSimulationOptions {
  double slowdown = 0;  // relative slow-down of computation while a link is busy: 0.1 means 10%
  bool timeline = false;
};

// Simulates 3 steps that begin on an idle machine; if the last step does not take as long as the step before it,
// simulates 6, then 12, then 24 steps. If 24 steps are not enough either, the result is the mean of the last 12. No step
// counts as shorter than the time for which its busiest link works. Cost: O(log w) per stage, with w waiting stages.
// Throws Error(invalid_argument) if tasks wait for each other in a cycle, or if no task computes.
StepTimeline simulate_step(const std::vector<StepTask>& tasks, const StepSimulationOptions& options = {});

}  // namespace stretto
