#pragma once
#include "perf/overlap/overlap_case.hpp"

namespace perf {

// Gradients are summed in buckets while backward computes others.
std::unique_ptr<OverlapCase> make_data_parallel(const stretto::Communicator& world, const OverlapSizes& sizes);
// A layer's parameters are gathered while the layers before it compute.
std::unique_ptr<OverlapCase> make_zero3(const stretto::Communicator& world, const OverlapSizes& sizes);
// Matrix products are cut into chunks, with their all-gather and reduce-scatter.
std::unique_ptr<OverlapCase> make_tensor_parallel(const stretto::Communicator& world, const OverlapSizes& sizes);
// Blocks of keys and values go round the ranks; each rank computes with the block that it has.
std::unique_ptr<OverlapCase> make_ring_pass(const stretto::Communicator& world, const OverlapSizes& sizes);
// Experts compute on the rows that have arrived while others are in flight.
std::unique_ptr<OverlapCase> make_all_to_all(const stretto::Communicator& world, const OverlapSizes& sizes);

}  // namespace perf
