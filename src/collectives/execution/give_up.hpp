#pragma once
#include <string>
#include <vector>

#include "transport/network.hpp"

namespace stretto {

// Throws Error(timeout): nothing has come from `ranks`, which are ranks of the job, for the network's timeout. Asks them
// first what they are doing, for a second at most. what: the operation; history: the last ones of this rank, one a line.
[[noreturn]] void give_up(std::vector<int> ranks, Network& network, const std::string& what, const std::string& history);

}  // namespace stretto
