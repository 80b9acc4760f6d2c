#pragma once
#include "device/stream/kernel_scope.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// Copies some columns of every row of one matrix to another of equally many rows and the same type. (On a GPU it is a copy
// for each row.)
inline void copy_columns(const Tensor& from, std::int64_t from_column, const Tensor& to, std::int64_t to_column,
                         std::int64_t columns) {
  as_kernel("copy", [&] {
    for (std::int64_t row = 0; row < from.rows(); ++row) {
      to.view(row * to.columns() + to_column, {columns}).copy_from(from.view(row * from.columns() + from_column, {columns}));
    }
  });
}

}  // namespace stretto
