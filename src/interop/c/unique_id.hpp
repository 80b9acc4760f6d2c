#pragma once
#include "stretto/launch.hpp"
#include "stretto/stretto.h"

namespace stretto::c {

// Returns where `rank` meets the other ranks of `id`. Rank 0 takes the listening socket that the process opened for the id,
// and can do so only once.
MeetingPoint meeting_of(const strettoUniqueId& id, int rank);

}  // namespace stretto::c
