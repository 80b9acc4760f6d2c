#include "device/kernels/arguments.hpp"

#include <fmt/ranges.h>

#include "device/missing.hpp"

namespace stretto::kernels {

void check_there(const char* kernel, const char* argument, const Tensor& tensor) {
  require(!is_missing(tensor), "{} was given an empty tensor as {}; {}.", kernel, argument, why_missing);
}

void check_holds(const char* kernel, const char* argument, const Tensor& tensor, DType dtype, std::int64_t size) {
  if (tensor.dtype() == dtype && tensor.size() == size) return;
  check_there(kernel, argument, tensor);
  fail(ErrorCode::invalid_argument, "{} needs {} elements of {} in {}, but was given {} {}.", kernel, size, name(dtype),
       argument, name(tensor.dtype()), tensor.shape());
}

void check_gradient(const char* kernel, const char* argument, const Tensor& tensor, DType f, std::int64_t size) {
  check_holds(kernel, argument, tensor, tensor.dtype() == f ? f : accumulator(f), size);
}

void check_columns(const char* kernel, const char* argument, const Tensor& tensor, std::int64_t columns) {
  check_there(kernel, argument, tensor);
  require(tensor.columns() == columns, "{} needs {} columns in {}, but was given {} {}.", kernel, columns, argument,
          name(tensor.dtype()), tensor.shape());
}

void check_heads(const char* kernel, const char* argument, const TokenHeads& given, DType dtype, std::int64_t tokens,
                 std::int64_t heads, std::int64_t head_size) {
  const auto& [tensor, column, parts, part_step] = given;
  check_there(kernel, argument, tensor);
  require(heads >= 1 && head_size >= 1 && parts >= 1 && heads % parts == 0 &&
              (parts == 1 || part_step >= heads / parts * head_size),
          "{} cannot find {} heads of {} elements in {} parts of {} that begin {} columns apart.", kernel, heads, head_size,
          parts, argument, part_step);
  const std::int64_t end = column + (parts - 1) * part_step + heads / parts * head_size;
  require(tensor.dtype() == dtype && tensor.rows() == tokens && column >= 0 && end <= tensor.columns(),
          "{} needs {} rows and the columns [{}, {}) of {} in {}, but was given {} {}.", kernel, tokens, column, end,
          name(dtype), argument, name(tensor.dtype()), tensor.shape());
}

}  // namespace stretto::kernels
