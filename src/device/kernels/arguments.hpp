#pragma once
#include "device/kernels/compute_types.hpp"
#include "stretto/kernels.hpp"

// Checks of kernels' arguments. Each throws Error(invalid_argument) with a sentence that begins with the kernel's name.
namespace stretto::kernels {

void check_there(const char* kernel, const char* argument, const Tensor& tensor);  // it has memory
void check_holds(const char* kernel, const char* argument, const Tensor& tensor, DType dtype, std::int64_t size);
// A gradient of elements of f has type f or the accumulator type of f.
void check_gradient(const char* kernel, const char* argument, const Tensor& tensor, DType f, std::int64_t size);
void check_columns(const char* kernel, const char* argument, const Tensor& tensor, std::int64_t columns);
// So many heads in the rows of each token.
void check_heads(const char* kernel, const char* argument, const TokenHeads& given, DType dtype, std::int64_t tokens,
                 std::int64_t heads, std::int64_t head_size);

}  // namespace stretto::kernels
