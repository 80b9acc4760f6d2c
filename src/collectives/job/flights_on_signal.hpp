#pragma once

namespace stretto {

class RankContext;

// After add, write_flights_on() (stretto/launch.hpp) also writes the flight file of this rank.
void add_to_flights_on_signal(RankContext& rank);
void remove_from_flights_on_signal(RankContext& rank);  // returns when nothing of the rank is being written

}  // namespace stretto
