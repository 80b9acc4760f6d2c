#pragma once
#include <string>

#include "plan/layout_report.hpp"

namespace plan_tool {

// Parses the arguments after the subcommand's name. Returns false if they ask for help, which has then been printed.
bool parse(int argc, char** argv, LayoutLine& line);

// stretto-plan layout: plans the layout of a whole job. Takes the arguments after the subcommand's name.
void plan_layout_of(int argc, char** argv);

}  // namespace plan_tool
