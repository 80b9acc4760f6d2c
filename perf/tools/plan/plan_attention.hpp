#pragma once
#include "plan/attention_layouts.hpp"

namespace plan_tool {

// The arguments after that word. False if help was asked for, and printed.
bool parse(int argc, char** argv, AttentionLine& line);

// stretto-plan attention: plans how long sequences are divided. Takes the arguments after that word.
void plan_attention_of(int argc, char** argv);

}  // namespace plan_tool
