#pragma once
#include "options.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// What every rank does. Throws at rank 0 when any value was wrong on any rank.
void run_tests(const stretto::Communicator& world, const Options& options);

}  // namespace perf
