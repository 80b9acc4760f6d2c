#pragma once
#include <string>
#include <vector>

#include "transport/network.hpp"

namespace stretto {

// Asks these ranks of the job what they are doing, then the ranks that those wait for, and so on, up to the rank that holds
// up the others. Waits a second at most for each round of answers. Returns text to append to a sentence without its full
// stop: "; rank 3 is in no operation: ...".
std::string accounts_of(std::vector<int> ranks, JobControl& job);

// Throws Error(timeout): nothing has come from `ranks`, which are ranks of the job, for the network's timeout. Asks them
// first what they are doing, for a second at most. what: the operation; history: the last ones of this rank, one a line.
[[noreturn]] void give_up(std::vector<int> ranks, Network& network, const std::string& what, const std::string& history);

}  // namespace stretto
