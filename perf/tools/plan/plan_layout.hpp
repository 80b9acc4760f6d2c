#pragma once
#include <string>

#include "plan/layout_report.hpp"

namespace plan_tool {

// "gpt:layers=96,hidden=12288,heads=96,seq=2048,vocab=51200"
ModelShape model_from_text(const std::string& text);
// The arguments after that word. False if help was asked for, and printed.
bool parse(int argc, char** argv, LayoutLine& line);

// stretto-plan layout: plans the layout of a whole job. Takes the arguments after that word.
void plan_layout_of(int argc, char** argv);

}  // namespace plan_tool
