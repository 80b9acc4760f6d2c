#pragma once
#include "stretto/launch.hpp"
#include "stretto/stretto.h"

namespace stretto::c {

// Where the ranks of that id meet, for one of them. Rank 0 gets the socket that the id's process opened: once.
MeetingPoint meeting_of(const strettoUniqueId& id, int rank);

}  // namespace stretto::c
