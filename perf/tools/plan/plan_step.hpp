#pragma once

namespace plan_tool {

// stretto-plan step: plans the communication of a GPT-like training step. Takes the arguments after that word.
void plan_step_of(int argc, char** argv);

}  // namespace plan_tool
