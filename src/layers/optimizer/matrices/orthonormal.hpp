#pragma once
#include "stretto/tensor.hpp"

namespace stretto {

// Makes the columns of an f32 matrix [rows, columns] orthonormal, in place; rows >= columns. The first k new columns span
// the same space as the first k old ones. A column that depends on earlier columns, such as a column of zeros, becomes a
// unit vector orthogonal to them. Infinities and NaNs end as NaNs. The same matrix gives the same bits. Cost: 4 rows
// columns^2 multiplications, in f64.
void make_orthonormal(const Tensor& matrix);

}  // namespace stretto
