#pragma once

namespace plan_tool {

// stretto-plan attention: plans how long sequences are divided. Takes the arguments after that word.
void plan_attention_of(int argc, char** argv);

}  // namespace plan_tool
