#pragma once
#include <cstdint>
#include <map>

#include "stretto/tensor.hpp"

namespace stretto {

// A matrix that is divided into chunks of one size, by rows of chunks.
struct ChunkGrid {
  std::int64_t rows = 1, columns = 1;  // of the matrix
  std::int64_t height = 1, width = 1;  // of a chunk

  // Each side of a chunk is the largest divisor of the matrix's side that is not above `most`, as in DeMo's published code.
  static ChunkGrid of(std::int64_t rows, std::int64_t columns, std::int64_t most);

  std::int64_t elements() const { return rows * columns; }
  std::int64_t of_chunk() const { return height * width; }
  std::int64_t chunks() const { return rows / height * (columns / width); }
  // Where the elements of a chunk begin in the matrix; element i of the chunk lies i / width rows below, in column i %
  // width.
  std::int64_t begin(std::int64_t chunk) const {
    const std::int64_t across = columns / width;
    return chunk / across * height * columns + chunk % across * width;
  }
};

// The two-dimensional DCT-II of each chunk of a matrix, orthonormal: C X C'^T, with C[k][n] = sqrt((k > 0 ? 2 : 1) / N)
// cos(pi (2 n + 1) k / (2 N)) for N rows, and C' likewise for the columns. All tensors are f32 and have the grid's elements;
// coefficients lie where the elements of their chunk do. `scratch` is overwritten. Cost: 2 (height + width) operations an
// element, as matrix products.
class ChunkedDCT {
 public:
  void encode(const ChunkGrid& grid, const Tensor& matrix, const Tensor& coefficients, const Tensor& scratch);
  void decode(const ChunkGrid& grid, const Tensor& coefficients, const Tensor& matrix, const Tensor& scratch);

 private:
  const Tensor& basis(std::int64_t size);
  std::map<std::int64_t, Tensor> bases_;  // C by N
};

}  // namespace stretto
