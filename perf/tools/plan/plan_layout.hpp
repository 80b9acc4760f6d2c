#pragma once

namespace plan_tool {

// stretto-plan layout: argv[0] is the word. Throws Error in one sentence.
void plan_layout_of(int argc, char** argv);

}  // namespace plan_tool
