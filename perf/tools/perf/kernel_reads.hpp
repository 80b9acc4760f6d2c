#pragma once
#include "stretto/communicator.hpp"

namespace perf {

// Whether the kernel lets the ranks of this host, processes or threads, read each other's ordinary memory, as pull does.
// Collective; all ranks get the same result.
bool ranks_read_each_other(const stretto::Communicator& world);

}  // namespace perf
