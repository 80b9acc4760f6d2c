#pragma once
#include "stretto/overlap/schedule.hpp"

namespace stretto {

// Throws if the numbers of a schedule are outside of what schedules may have: at least 1 of each, at most 4096 stages, 2^22
// computations forward, and two chunks for a V.
void require_sizes(const Schedule& schedule);

}  // namespace stretto
