#pragma once
#include "plan/plan_options.hpp"

namespace plan_tool {

// --verify: proves every case of the repertoire that the command line names, and prints a line for each algorithm. Uses all
// processor cores. Throws Error for the first case that is wrong.
void verify_all(const CommandLine& line);

}  // namespace plan_tool
