#pragma once

namespace stretto {

class RankContext;

// The ranks of this process, whose flight files write_flights_on() (stretto/launch.hpp) writes.
void add_to_flights_on_signal(RankContext& rank);
void remove_from_flights_on_signal(RankContext& rank);  // returns when nothing of the rank is being written

}  // namespace stretto
