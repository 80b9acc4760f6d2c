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

// Parses the arguments after the subcommand's name. Returns false if they ask for help, which has then been printed.
bool parse(int argc, char** argv, StepLine& line);

// stretto-plan step: plans the communication of a GPT-like training step. Takes the arguments after the subcommand's name.
void plan_step_of(int argc, char** argv);

}  // namespace plan_tool
