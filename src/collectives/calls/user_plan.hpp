#pragma once
#include "stretto/plan.hpp"

namespace stretto {

// The rules by which a plan of the caller's own runs, as its steps show: user if its ranks send messages; otherwise, between
// memories, those of push if this rank writes to others, and of pull if not.
Algorithm rules_of(const Plan& plan);

// Checks what one rank can know of a plan: that every step is well formed and stays inside its buffers, that its peers are
// in the group, and that between memories this rank knows where a buffer is before it accesses it. The scratch of other
// ranks it cannot know. Throws Error(invalid_argument) with a sentence that names the plan and the fault.
void check_plan(const Plan& plan);

}  // namespace stretto
