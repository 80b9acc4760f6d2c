#pragma once
#include "perf/options.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Throws if a named method cannot do the named collective. Each rank decides by itself.
void check_methods(const stretto::Communicator& world, const Options& options);

// Runs all tests. Collective. Throws at rank 0 if any value was wrong on any rank.
void run_tests(const stretto::Communicator& world, const Options& options);

}  // namespace perf
