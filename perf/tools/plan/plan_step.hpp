#pragma once
#include <string>

namespace plan_tool {

struct StepLine {
  int ranks = 0, ranks_per_node = 0, data = 0, tensor = 1, zero = 0;
  int layers = 24, hidden = 2048, sequence = 2048, micro_batch = 1;
  int live_gathers = 2, parts = 8;
  double gflops = 0, slowdown = 0;
  std::string links, json;
};

// The arguments after that word. False if help was asked for, and printed.
bool parse(int argc, char** argv, StepLine& line);

// stretto-plan step: plans the communication of a GPT-like training step. Takes the arguments after that word.
void plan_step_of(int argc, char** argv);

}  // namespace plan_tool
