#include "layers/optimizer/matrices/newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr int iterations = 5;
constexpr double a = 3.4445, b = -4.7750, c = 2.0315;

void copy_scaled(const Tensor& from, double factor, const Tensor& out) {
  out.copy_from(from);
  kernels::scale(out, factor);
}

}  // namespace

// X is kept multiplied by c^(1/4). Then X X^T is sqrt(c) A, whose square is c A^2, so that products need no factor. Of a
// matrix with more rows than columns, A = X^T X stands on the right instead: the iteration of the transposed matrix.
Tensor orthogonalised(const Tensor& matrix, bool in_bf16) {
  const std::int64_t rows = matrix.rows(), columns = matrix.columns(), side = std::min(rows, columns);
  const bool is_tall = rows > columns;
  const auto [no, yes] = std::pair(kernels::Transpose::no, kernels::Transpose::yes);
  const double root = std::sqrt(c);
  const DType dtype = in_bf16 ? DType::bf16 : matrix.dtype();
  kernels::scale(matrix, std::sqrt(root) / (std::sqrt(kernels::sum_of_squares(matrix)) + 1e-7));
  Tensor x = in_bf16 ? Tensor(matrix.shape(), dtype, matrix.device()) : matrix, next(matrix.shape(), dtype);
  const Tensor gram({side, side}, dtype), polynomial(gram.shape(), dtype);
  if (in_bf16) kernels::convert(matrix, x);
  for (int i = 0; i < iterations; ++i) {
    is_tall ? kernels::gemm(x, yes, x, no, gram) : kernels::gemm(x, no, x, yes, gram);
    copy_scaled(gram, b / root, polynomial);
    kernels::gemm(gram, no, gram, no, polynomial, true);
    copy_scaled(x, a, next);
    is_tall ? kernels::gemm(x, no, polynomial, no, next, true) : kernels::gemm(polynomial, no, x, no, next, true);
    std::swap(x, next);
  }
  if (in_bf16) kernels::convert(x, matrix);
  Tensor result = in_bf16 ? matrix : x;
  kernels::scale(result, 1 / std::sqrt(root));
  return result;
}

double newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns), side = std::min(m, n);
  return iterations * (4 * m * n * side + 2 * side * side * side);
}

std::int64_t newton_schulz_elements(std::int64_t rows, std::int64_t columns) {
  const std::int64_t side = std::min(rows, columns);
  return rows * columns + 2 * side * side;
}

}  // namespace stretto
