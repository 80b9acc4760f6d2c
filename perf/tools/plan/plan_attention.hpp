#pragma once
#include "plan/attention_layouts.hpp"

namespace plan_tool {

// Parses the arguments after the subcommand's name. Returns false if they ask for help, which has then been printed.
bool parse(int argc, char** argv, AttentionLine& line);

// stretto-plan attention: plans the division of long sequences. Takes the arguments after the subcommand's name.
void plan_attention_of(int argc, char** argv);

}  // namespace plan_tool
