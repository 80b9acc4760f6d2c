#pragma once
#include <string>

#include "stretto/move.hpp"

namespace plan_tool {

struct MoveLine {
  std::string shape, dtype = "f32", format = "none", from, to;
  int ranks_per_node = 0;
  std::string buffer = "0";
  double gbit = 0;
};

// Parses the arguments after the subcommand's name. Returns false if they ask for help, which has then been printed.
bool parse(int argc, char** argv, MoveLine& line);

// "0@0..3": along dimension 0 over ranks 0 to 3; "all@4,6": a copy on each.
stretto::Division division_from_text(const char* flag, const std::string& text, const stretto::Shape& shape);

// stretto-plan move: plans, proves and prices the move of a tensor to another division.
void plan_move_of(int argc, char** argv);

}  // namespace plan_tool
