#include "layers/optimizer/matrices/chunked_dct.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "stretto/kernels.hpp"

namespace stretto {
namespace {

std::int64_t divisor_up_to(std::int64_t most, std::int64_t size) {
  std::int64_t result = std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(1, size));
  while (size % result != 0) --result;
  return result;
}

Tensor rows_of(const ChunkGrid& grid, const Tensor& matrix, std::int64_t row) {
  return matrix.view(row * grid.columns, {grid.height, grid.columns});
}

}  // namespace

ChunkGrid ChunkGrid::of(std::int64_t rows, std::int64_t columns, std::int64_t most) {
  return {rows, columns, divisor_up_to(most, rows), divisor_up_to(most, columns)};
}

// One product has all chunks' rows; the columns of chunks take one for each row of chunks.
void ChunkedDCT::encode(const ChunkGrid& grid, const Tensor& matrix, const Tensor& coefficients, const Tensor& scratch) {
  constexpr auto no = kernels::Transpose::no, yes = kernels::Transpose::yes;
  const Shape of_rows{grid.elements() / grid.width, grid.width};
  const Tensor& along_rows = grid.height == 1 ? coefficients : scratch;
  kernels::gemm(matrix.reshaped(of_rows), no, basis(grid.width), yes, along_rows.reshaped(of_rows));
  for (std::int64_t row = 0; row < grid.rows && grid.height > 1; row += grid.height) {
    kernels::gemm(basis(grid.height), no, rows_of(grid, scratch, row), no, rows_of(grid, coefficients, row));
  }
}

void ChunkedDCT::decode(const ChunkGrid& grid, const Tensor& coefficients, const Tensor& matrix, const Tensor& scratch) {
  constexpr auto no = kernels::Transpose::no, yes = kernels::Transpose::yes;
  const Shape of_rows{grid.elements() / grid.width, grid.width};
  for (std::int64_t row = 0; row < grid.rows && grid.height > 1; row += grid.height) {
    kernels::gemm(basis(grid.height), yes, rows_of(grid, coefficients, row), no, rows_of(grid, scratch, row));
  }
  const Tensor& along_rows = grid.height == 1 ? coefficients : scratch;
  kernels::gemm(along_rows.reshaped(of_rows), no, basis(grid.width), no, matrix.reshaped(of_rows));
}

const Tensor& ChunkedDCT::basis(std::int64_t size) {
  const auto [place, is_new] = bases_.try_emplace(size);
  if (!is_new) return place->second;
  const MemoryScope buffers(MemoryKind::buffers);
  place->second = Tensor({size, size}, DType::f32);
  const auto n = static_cast<double>(size);
  for (std::int64_t k = 0; k < size; ++k) {
    for (std::int64_t i = 0; i < size; ++i) {
      const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2 * n);
      place->second.set(k * size + i, std::sqrt((k > 0 ? 2 : 1) / n) * std::cos(angle));
    }
  }
  return place->second;
}

}  // namespace stretto
