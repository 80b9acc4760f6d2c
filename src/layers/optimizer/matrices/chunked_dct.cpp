#include "layers/optimizer/matrices/chunked_dct.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace stretto {
using kernels::cpu::ProductUse;
using kernels::cpu::small_product;

namespace {

std::int64_t divisor_up_to(std::int64_t most, std::int64_t size) {
  std::int64_t result = std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(1, size));
  while (size % result != 0) --result;
  return result;
}

}  // namespace

ChunkGrid ChunkGrid::of(std::int64_t rows, std::int64_t columns, std::int64_t most) {
  return {rows, columns, divisor_up_to(most, rows), divisor_up_to(most, columns)};
}

ChunkTransform::Scratch::Scratch(const ChunkGrid& grid)
    : products(static_cast<std::size_t>(grid.of_chunk())), rows(static_cast<std::size_t>(grid.height * grid.height)) {}

void ChunkTransform::encode(const float* begin, float* coefficients, Scratch& scratch) const {
  const auto [height, width] = std::pair(grid_.height, grid_.width);
  float* const along_rows = height == 1 ? coefficients : scratch.products.data();
  const float* const transposed = of_width_.data<float>() + width * width;
  small_product({height, width, width, begin, grid_.columns, 1, transposed, width, along_rows, width}, ProductUse::assign);
  if (height == 1) return;
  const float* const basis = of_height_.data<float>();
  small_product({height, width, height, basis, height, 1, along_rows, width, coefficients, width}, ProductUse::assign);
}

// Rows without coefficients add nothing to any product.
void ChunkTransform::decode(const float* coefficients, float* begin, ProductUse use, Scratch& scratch) const {
  const auto [height, width] = std::pair(grid_.height, grid_.width);
  std::int64_t found = 0;
  for (std::int64_t k = 0; k < height; ++k) {
    float* const product = scratch.products.data() + found * width;
    bool any = false;
    for (std::int64_t j = 0; j < width; ++j) {
      const float coefficient = coefficients[k * width + j];
      if (coefficient == 0) continue;
      const float* const wave = of_width_.data<float>() + j * width;
      for (std::int64_t i = 0; i < width; ++i) product[i] = (any ? product[i] : 0) + coefficient * wave[i];
      any = true;
    }
    if (any) std::copy_n(of_height_.data<float>() + k * height, height, scratch.rows.data() + found++ * height);
  }
  small_product({height, width, found, scratch.rows.data(), 1, height, scratch.products.data(), width, begin, grid_.columns},
                use);
}

ChunkTransform ChunkedDCT::of(const ChunkGrid& grid) {
  ChunkTransform result;
  result.grid_ = grid;
  result.of_height_ = basis(grid.height);
  result.of_width_ = basis(grid.width);
  return result;
}

const Tensor& ChunkedDCT::basis(std::int64_t size) {
  const auto [place, is_new] = bases_.try_emplace(size);
  if (!is_new) return place->second;
  const MemoryScope buffers(MemoryKind::buffers);
  place->second = Tensor({2, size, size}, DType::f32);
  const auto n = static_cast<double>(size);
  for (std::int64_t k = 0; k < size; ++k) {
    for (std::int64_t i = 0; i < size; ++i) {
      const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2 * n);
      const double value = std::sqrt((k > 0 ? 2 : 1) / n) * std::cos(angle);
      place->second.set(k * size + i, value);
      place->second.set((size + i) * size + k, value);
    }
  }
  return place->second;
}

}  // namespace stretto
