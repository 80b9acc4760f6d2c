#pragma once

namespace plan_tool {

// stretto-plan layout: plans the layout of a whole job. Takes the arguments after that word.
void plan_layout_of(int argc, char** argv);

}  // namespace plan_tool
