#pragma once
#include "perf/options.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Throws where a method that was named cannot do the collective that was named. Each rank by itself.
void check_methods(const stretto::Communicator& world, const Options& options);

// What every rank does. Throws at rank 0 when any value was wrong on any rank.
void run_tests(const stretto::Communicator& world, const Options& options);

}  // namespace perf
