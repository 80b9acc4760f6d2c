#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "device/cpu/products/small_product.hpp"
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

// The two-dimensional DCT-II of a chunk, orthonormal: C X C'^T, with C[k][n] = sqrt((k > 0 ? 2 : 1) / N)
// cos(pi (2 n + 1) k / (2 N)) for N rows, and C' likewise for the columns. Several threads may transform at a time, each
// with a Scratch of its own. Cost: 2 (height + width) operations an element. Coefficients of 0 cost decode() nothing: it
// takes 2 width operations a chunk for each other coefficient, and 2 an element for each of the height's rows that has one,
// so never more than encode().
class ChunkTransform {
 public:
  struct Scratch {
    explicit Scratch(const ChunkGrid& grid);
    static std::int64_t elements(const ChunkGrid& grid) { return grid.of_chunk() + grid.height * grid.height; }
    std::vector<float> products, rows;
  };

  // From a chunk that begins there in its matrix to coefficients, one row behind the other.
  void encode(const float* begin, float* coefficients, Scratch& scratch) const;
  // The reverse, to which `use` puts the elements.
  void decode(const float* coefficients, float* begin, kernels::cpu::ProductUse use, Scratch& scratch) const;

 private:
  friend class ChunkedDCT;
  ChunkGrid grid_;
  Tensor of_height_, of_width_;  // C and behind it its transpose
};

// Has the bases of all transforms.
class ChunkedDCT {
 public:
  ChunkTransform of(const ChunkGrid& grid);

 private:
  const Tensor& basis(std::int64_t size);
  std::map<std::int64_t, Tensor> bases_;
};

}  // namespace stretto
