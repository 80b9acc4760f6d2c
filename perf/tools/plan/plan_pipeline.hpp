#pragma once
#include <string>
#include <vector>

namespace plan_tool {

struct PipelineLine {
  std::string what, schedule, svg, json, text;
  int stages = 0, microbatches = 0, chunks = 0;  // 0: not given
  std::vector<double> times{1, 1, 1, 0};
  bool verify = false;
};

// Parses the arguments after the subcommand's name. Returns false if they ask for help, which has then been printed.
bool parse(int argc, char** argv, PipelineLine& line);

// stretto-plan pipeline: proves, simulates and draws a pipeline schedule. Takes the arguments after the subcommand's name.
void plan_pipeline_of(int argc, char** argv);

}  // namespace plan_tool
