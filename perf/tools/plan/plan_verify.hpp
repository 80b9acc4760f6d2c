#pragma once
#include <chrono>

#include "plan/plan_options.hpp"

namespace plan_tool {

// --verify: proves every case of the repertoire that the command line names, and prints a line for each algorithm. Uses all
// processor cores. Throws Error for the first case that is wrong.
void verify_all(const CommandLine& line);

double seconds_since(std::chrono::steady_clock::time_point begin);

}  // namespace plan_tool
