#pragma once
#include <string>

#include "plan/layout_report.hpp"

namespace plan_tool {

// "gpt:layers=96,hidden=12288,heads=96,seq=2048,vocab=51200"
DecoderShape model_from_text(const std::string& text);
// Parses the arguments after the subcommand's name. Returns false if they ask for help, which has then been printed.
bool parse(int argc, char** argv, LayoutLine& line);

// stretto-plan layout: plans the layout of a whole job. Takes the arguments after the subcommand's name.
void plan_layout_of(int argc, char** argv);

}  // namespace plan_tool
