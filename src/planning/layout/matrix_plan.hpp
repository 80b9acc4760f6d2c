#pragma once
#include <cstdint>

#include "layers/sharded/unit_cut.hpp"

// Whole matrices by formula: what an optimizer that updates them whole (OptimizerKind::whole_matrices) costs.
namespace stretto {

// Elements that a rank holds of a unit.
struct HeldElements {
  std::int64_t matrices = 0, others = 0;  // of hidden matrices (Parameter::matrices), and the rest
};
// On the first tensor-parallel rank at place `token` of the token axes: of its share, or of the whole unit.
HeldElements held_elements(const Parameters& parameters, const UnitMembers& unit, const MeshShape& mesh, int token,
                           bool whole);

// The most bytes that MatrixExchange and the Newton-Schulz iteration hold at a time on a rank.
std::int64_t matrix_buffers(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options);

// Bytes that a rank sends in a step, to owners of matrices and from them; the mean of the ranks of a pipeline stage.
std::int64_t matrix_traffic(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options);

}  // namespace stretto
