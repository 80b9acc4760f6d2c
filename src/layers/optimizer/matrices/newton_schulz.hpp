#pragma once
#include <cstdint>

#include "stretto/tensor.hpp"

// Orthogonalisation by the Newton-Schulz iteration of Muon (Jordan et al. 2024): X = G / (|G|_F + 1e-7), and five times
// A = X X^T, X <- a X + (b A + c A^2) X. The singular values of the result lie in about 0.5 to 1.5, for those of G that are
// not below a hundredth of the largest.
namespace stretto {

// Overwrites a matrix [rows, columns] of f32 or f64, of any device, and returns the result of the same type, which may be
// other memory. Products are computed in the matrix's type, or in bf16. The same bits wherever it is computed by as many
// threads of the same processor.
Tensor orthogonalised(const Tensor& matrix, bool in_bf16 = false);

// By formula, for a matrix and its working memory: 5 (4 rows columns s + 2 s^3) operations, where s is the smaller side, and
// the elements allocated beside the matrix; with bf16 fewer bytes.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns);
std::int64_t newton_schulz_elements(std::int64_t rows, std::int64_t columns);

}  // namespace stretto
