#pragma once
#include "overlap_case.hpp"

namespace perf {

// Backward's gradients are summed in buckets while it computes others.
std::unique_ptr<OverlapCase> make_data_parallel(const stretto::Communicator& world, const OverlapSizes& sizes);

}  // namespace perf
