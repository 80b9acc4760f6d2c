#pragma once
#include <array>
#include <vector>

#include "stretto/overlap/step_graph.hpp"
#include "stretto/stream.hpp"

// Predicts how long a repeated training step takes, by a small discrete-event simulation of one rank, since all ranks
// do the same (SPMD).
//
// The model. A rank computes one task at a time, in the order of the tasks, and waits if the next one is not ready.
// Links inside nodes and links between nodes are two resources that work at the same time. Each serves one stage at a
// time and finishes it. The next stage is the one with, in this order: the highest priority, the earlier step, the node
// whose tasks come first, the earlier stage, the earlier chunk. So more urgent collectives overtake a collective
// between its chunks. A stage may occupy both resources, each for its own time; the next stage begins when both are
// done.
namespace stretto {

enum class StepResource : std::uint8_t { compute, inside, between };
STRETTO_API const char* name(StepResource resource);

struct StepTask {
  int node = 0;        // index in the StepGraph; tasks of one node are its chunks and follow each other
  double seconds = 0;  // of computation
  struct Stage {
    double inside = 0, between = 0;  // seconds for which it occupies the links inside nodes and between nodes
  };
  bool communicates = false;
  bool postponed = false;     // communication of a node that comes after the node's update
  std::vector<Stage> stages;  // of communication, one after the other
  Priority priority = Priority::normal;
  std::vector<StepDependency> after;  // StepDependency::node is an index of a task here
};

struct StepTimeline {
  double seconds = 0;               // of one step, in steady state
  std::array<double, 3> busy = {};  // seconds by resource, in one step, without slowdown
  struct Piece {
    int step = 0;  // 0 or 1: one of the last two simulated steps
    int task = 0, stage = 0;
    StepResource resource = StepResource::compute;
    double begin = 0, end = 0;  // seconds since the first simulated step began
  };
  std::vector<Piece> pieces;  // in the order of their ends, if asked for
  double last_begin = 0;      // when the last step's first computation began
  double computing() const { return busy[0]; }
  double busiest_link() const { return busy[1] > busy[2] ? busy[1] : busy[2]; }
};

struct StepSimulationOptions {
  double slowdown = 0;  // relative slow-down of computation while a link is busy: 0.1 is 10%
  bool timeline = false;
};

// Simulates three steps from an empty machine, then 6, 12 and 24 until one step takes as long as the one before it; if
// none does, the mean of the last half of 24 counts. Cost: O(log w) per stage, with w waiting stages. Throws
// Error(invalid_argument) if tasks wait for each other in a cycle, or if no task computes.
STRETTO_API StepTimeline simulate_step(const std::vector<StepTask>& tasks, const StepSimulationOptions& options = {});

}  // namespace stretto
