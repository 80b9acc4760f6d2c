#pragma once
#include <array>
#include <vector>

#include "stretto/overlap/step_graph.hpp"
#include "stretto/stream.hpp"

// How long a training step takes that repeats itself, by a small discrete-event simulation of one rank, as which all others
// are (SPMD).
//
// The model. A rank computes one task at a time, in the tasks' order, and waits where one is not ready. Links inside nodes
// and between nodes are two resources that work at the same time; each serves one stage at a time and finishes it. Who is
// next there: the highest priority, the earlier step, the node whose tasks come first, the earlier stage, the earlier chunk.
// So a collective is overtaken by more urgent ones between its chunks. A stage may occupy both resources, each for its own
// time; the next stage begins when both are done.
namespace stretto {

enum class StepResource : std::uint8_t { compute, inside, between };
STRETTO_API const char* name(StepResource resource);

struct StepTask {
  int node = 0;        // of the graph, for whoever reads the timeline; tasks of one node are chunks and lie together
  double seconds = 0;  // of computation
  struct Stage {
    double inside = 0, between = 0;  // seconds that the links are occupied
  };
  bool communicates = false;
  bool postponed = false;     // communication of a node's that comes after its update
  std::vector<Stage> stages;  // of communication, one after the other
  Priority priority = Priority::normal;
  std::vector<StepDependency> after;  // tasks, by index
};

struct StepTimeline {
  double seconds = 0;               // of a step, in steady state
  std::array<double, 3> busy = {};  // by resource, of one step, without slowdown
  struct Piece {
    int step = 0;  // 0 or 1, of the last two simulated
    int task = 0, stage = 0;
    StepResource resource = StepResource::compute;
    double begin = 0, end = 0;  // seconds since the first of the steps simulated began
  };
  std::vector<Piece> pieces;  // in the order of their ends, where wanted
  double last_begin = 0;      // when the last step's first computation began
  double computing() const { return busy[0]; }
  double busiest_link() const { return busy[1] > busy[2] ? busy[1] : busy[2]; }
};

struct StepSimulationOptions {
  double slowdown = 0;  // computing takes so much longer while a link is busy: 0.1 is 10%
  bool timeline = false;
};

// Three steps from an empty machine; more, up to 24, until one takes as long as the one before it, or the mean of the last
// half where none does. Costs O(log) of what waits for each stage. Throws Error(invalid_argument) where tasks wait for each
// other.
STRETTO_API StepTimeline simulate_step(const std::vector<StepTask>& tasks, const StepSimulationOptions& options = {});

}  // namespace stretto
