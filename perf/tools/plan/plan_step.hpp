#pragma once

namespace plan_tool {

// stretto-plan step: the arguments behind that word. Plans the communication of a GPT-like training step.
void plan_step_of(int argc, char** argv);

}  // namespace plan_tool
