#pragma once

namespace plan_tool {

// stretto-plan pipeline: proves, simulates and draws a pipeline schedule. Takes the arguments after that word.
void plan_pipeline_of(int argc, char** argv);

}  // namespace plan_tool
