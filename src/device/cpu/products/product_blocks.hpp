#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "device/cpu/matmul_primitive.hpp"
#include "device/cpu/products/compute_threads.hpp"

// The order in which a matrix product is computed whose operands are copied first: parts of k outermost; of each part a
// block of columns of b, copied into panels that stay in the second-level cache; and of that a block of rows of a.
namespace stretto::kernels::cpu {

// A matrix op(x), of `lines` (rows of a or columns of b) by k: line i begins at first + i * line_step.
struct Lines {
  bool of_k;           // whether the elements along k lie next to each other, else those of a line do
  std::int64_t pitch;  // elements from one stored row to the next
  std::int64_t offset(std::int64_t line, std::int64_t k) const { return of_k ? line * pitch + k : k * pitch + line; }
};

inline Lines lines_of_a(const Product& p) { return {!p.transpose_a, p.transpose_a ? p.m : p.k}; }
inline Lines lines_of_b(const Product& p) { return {p.transpose_b, p.transpose_b ? p.k : p.n}; }

inline std::int64_t in_units(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit; }

struct BlockSizes {
  std::int64_t rows, columns;              // of a panel
  std::int64_t unit, most_depth;           // k is cut into parts of a multiple of unit, as equal as possible
  std::int64_t block_rows, block_columns;  // multiples of rows and of columns
};

// Memory of this thread for copies of operands; it only grows.
class PanelMemory {
 public:
  std::byte* of(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(page, (bytes + page - 1) / page * page)));
      if (!memory_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  static constexpr std::size_t page = 4096;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

struct Part {
  std::int64_t first, count;
  std::int64_t end() const { return first + count; }
};

// The elements of c that one thread computes.
struct Share {
  Part rows, columns;
};

// Calls run(share) in each of so many threads; the shares are whole panels.
template <class Run>
void in_threads(int threads, const BlockSizes& sizes, const Product& p, Run run) {
  const bool by_rows = p.m >= p.n;
  const std::int64_t all = by_rows ? p.m : p.n;
  const std::int64_t panel = by_rows ? sizes.rows : sizes.columns;
  in_threads(threads, in_units(all, panel), [&](int /*thread*/, std::int64_t first, std::int64_t end) {
    const Part mine{first * panel, std::min(end * panel, all) - first * panel};
    if (first < end) run(by_rows ? Share{mine, {0, p.n}} : Share{{0, p.m}, mine});
  });
}

// Calls copy_b(columns of b, part of k), copy_a(rows of a, part of k), and for each panel of the block of a and of b
// multiply(rows, columns, part of k, number of the panel of a, that of b).
template <class CopyA, class CopyB, class Multiply>
void for_each_block(const BlockSizes& sizes, const Share& share, std::int64_t all_k, CopyA copy_a, CopyB copy_b,
                    Multiply multiply) {
  const std::int64_t depth = in_units(in_units(all_k, in_units(all_k, sizes.most_depth)), sizes.unit) * sizes.unit;
  for (std::int64_t k = 0; k < all_k; k += depth) {
    const Part part{k, std::min(depth, all_k - k)};
    for (std::int64_t n = share.columns.first; n < share.columns.end(); n += sizes.block_columns) {
      const Part columns{n, std::min(sizes.block_columns, share.columns.end() - n)};
      copy_b(columns, part);
      for (std::int64_t m = share.rows.first; m < share.rows.end(); m += sizes.block_rows) {
        const Part rows{m, std::min(sizes.block_rows, share.rows.end() - m)};
        copy_a(rows, part);
        for (std::int64_t i = 0; i < rows.count; i += sizes.rows) {
          for (std::int64_t j = 0; j < columns.count; j += sizes.columns) {
            multiply(Part{m + i, std::min(sizes.rows, rows.count - i)},
                     Part{n + j, std::min(sizes.columns, columns.count - j)}, part, i / sizes.rows, j / sizes.columns);
          }
        }
      }
    }
  }
}

}  // namespace stretto::kernels::cpu
