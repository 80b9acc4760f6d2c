#pragma once
#include "perf/overlap/overlap_case.hpp"

namespace perf {

// Backward's gradients are summed in buckets while it computes others.
std::unique_ptr<OverlapCase> make_data_parallel(const stretto::Communicator& world, const OverlapSizes& sizes);
// Each layer's parameters are gathered while those before it compute.
std::unique_ptr<OverlapCase> make_zero3(const stretto::Communicator& world, const OverlapSizes& sizes);
// Products in chunks with their all-gather and their reduce-scatter.
std::unique_ptr<OverlapCase> make_tensor_parallel(const stretto::Communicator& world, const OverlapSizes& sizes);
// Blocks of keys and values go round the ranks while each computes with the one that it has.
std::unique_ptr<OverlapCase> make_ring_pass(const stretto::Communicator& world, const OverlapSizes& sizes);
// Experts compute on the rows that have arrived while others are on their way.
std::unique_ptr<OverlapCase> make_all_to_all(const stretto::Communicator& world, const OverlapSizes& sizes);

}  // namespace perf
