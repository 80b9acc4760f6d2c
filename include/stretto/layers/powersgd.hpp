#pragma once
#include <algorithm>
#include <cstdint>

#include "stretto/export.hpp"

namespace stretto {

// Sums of gradients in the factors of low-rank matrices, for slow links (PowerSGD; Vogels et al. 2019). A way in which
// data-parallel gradients are summed (ShardedParameters::Options::powersgd): any optimizer updates with the result, and
// norm and clipping are the result's. Rank i adds up its own gradient g_i of a weight [m, n]; then, with r columns in P and
// Q,
//
//   delta_i = g_i + e_i
//   P = sum over i of delta_i Q          one all-reduce of all P, and of what is not factored
//   P = its columns made orthonormal     in the order of the columns, by each rank alike
//   Q = sum over i of delta_i^T P        one all-reduce of all Q
//   the sum of gradients <- P Q^T,  e_i <- delta_i - P P^T delta_i
//
// Q is kept for the next step (warm start), its columns made orthonormal, so that steps with similar gradients are steps of
// one power iteration; the first Q is drawn. e_i is what the sum has yet to get from rank i (error feedback): the sums of
// all steps together are those of the gradients but for what the e_i hold at the end. (PyTorch's PowerSGDState keeps delta_i
// - P Q^T / N instead, which has the same sum over the ranks, and adds up how ranks differ.)
//
// - A matrix is a rank's slice of a parameter, with leading dimensions flattened. Vectors, and matrices for which r (m + n)
//   is not below m n, are summed as they are, and have no errors.
// - A gradient of rank r or below is summed exactly, but for rounding.
// - All ranks of a sum get the same bits at ZeRO stages 1 and 2, where owners update. At stage 0 each rank computes the
//   product P Q^T itself, so that the processors of a group must be alike.
// - A step that is not followed by an update, such as one that overflows in f16, leaves Q and e_i as they were.
// - Nothing travels during backward: both all-reduces follow it.
// - Values must be f32, bf16 or f16, in host memory; ZeRO stage 2 or below; without a delay and versions. A rank that has
//   nobody to sum with neither sends nor rounds.
//
// Memory of Psi elements of a rank, beside that of plain sums: 4 Psi for its own gradients and 4 Psi for e, both in f32, and
// the factors. A step costs 8 r operations and some 16 passes over memory an element.
struct STRETTO_API PowerSGDOptions {
  int rank = 0;            // r; 0: gradients are summed as they are
  std::int64_t start = 0;  // updates that are made with plain sums first; the first gradients change most
  // For comparisons: false drops the e_i, and takes the first Q in every step.
  bool use_error_feedback = true, warm_start = true;

  bool any() const { return rank > 0; }
  bool factors(std::int64_t rows, std::int64_t columns) const {
    return any() && rank < std::min(rows, columns) && rank * (rows + columns) < rows * columns;
  }
  void check() const;  // throws Error(invalid_argument), in one sentence, for numbers that cannot be
};

}  // namespace stretto
