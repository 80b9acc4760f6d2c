#pragma once
#include "stretto/communicator.hpp"

namespace perf {

// Whether the kernel lets the ranks, processes or threads of this host, read each other's ordinary memory, as pull does. All
// ranks call it and get the same.
bool ranks_read_each_other(const stretto::Communicator& world);

}  // namespace perf
