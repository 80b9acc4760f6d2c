#include "reduction.hpp"

namespace stretto_torch {
namespace {

using Kind = c10d::ReduceOp::RedOpType;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::SUM: return "SUM";
    case Kind::AVG: return "AVG";
    case Kind::PRODUCT: return "PRODUCT";
    case Kind::MIN: return "MIN";
    case Kind::MAX: return "MAX";
    case Kind::BAND: return "BAND";
    case Kind::BOR: return "BOR";
    case Kind::BXOR: return "BXOR";
    case Kind::PREMUL_SUM: return "PREMUL_SUM";
    default: return "an unknown operation";
  }
}

bool is_bitwise(Kind kind) { return kind == Kind::BAND || kind == Kind::BOR || kind == Kind::BXOR; }

stretto::ReduceOp op_of(Kind kind) {
  switch (kind) {
    case Kind::AVG: return stretto::ReduceOp::avg;
    case Kind::PRODUCT: return stretto::ReduceOp::prod;
    case Kind::MIN: return stretto::ReduceOp::min;
    case Kind::MAX: return stretto::ReduceOp::max;
    case Kind::PREMUL_SUM: return stretto::ReduceOp::premul_sum;
    default: return stretto::ReduceOp::sum;
  }
}

}  // namespace

std::optional<stretto::DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return stretto::DType::f64;
    case at::kFloat: return stretto::DType::f32;
    case at::kBFloat16: return stretto::DType::bf16;
    case at::kHalf: return stretto::DType::f16;
    case at::kChar: return stretto::DType::i8;
    case at::kByte: return stretto::DType::u8;
    case at::kInt: return stretto::DType::i32;
    case at::kLong: return stretto::DType::i64;
#if TORCH_VERSION_MAJOR >= 2
    case at::ScalarType::Float8_e4m3fn: return stretto::DType::f8e4m3;
    case at::ScalarType::Float8_e5m2: return stretto::DType::f8e5m2;
#endif
    default: return std::nullopt;
  }
}

Reduction reduction_of(const char* what, at::ScalarType type, const c10d::ReduceOp& op) {
  Reduction how;
  how.kind = op.op_;
  TORCH_CHECK(how.kind < Kind::UNUSED, what, ": the reduction number ", static_cast<int>(how.kind), " does not exist.");
  how.op = op_of(how.kind);
  if (how.kind == Kind::PREMUL_SUM) how.factor = premul_factor(op);
  const std::optional<stretto::DType> dtype = dtype_of(type);
  // The elements of bool are bytes of 0 and 1: their maximum is the sum and the bitwise or, their minimum the product and
  // the bitwise and.
  if (type == at::kBool) {
    TORCH_CHECK(how.kind != Kind::AVG && how.kind != Kind::PREMUL_SUM, what, ": ", name_of(how.kind),
                " has no meaning for bool; give SUM (any) or PRODUCT (all), or convert the tensor.");
    how.dtype = stretto::DType::u8;
    how.by_torch = how.kind == Kind::BXOR;
    const bool any = how.kind == Kind::SUM || how.kind == Kind::MAX || how.kind == Kind::BOR;
    how.op = any ? stretto::ReduceOp::max : stretto::ReduceOp::min;
    return how;
  }
  if (is_bitwise(how.kind)) {
    TORCH_CHECK(at::isIntegralType(type, false), what, ": ", name_of(how.kind), " takes integers, and the tensor is of ",
                type, ".");
    how.by_torch = true;
    return how;
  }
  if (dtype) {
    how.dtype = *dtype;
    return how;
  }
  TORCH_CHECK(type == at::kShort && how.kind != Kind::PREMUL_SUM, what, ": stretto has no ", name_of(how.kind), " of ", type,
              "; convert the tensor to a type that it has (float, double, half, bfloat16, int8, uint8, int, long).");
  how.by_torch = true;
  return how;
}

void combine(const Reduction& how, const at::Tensor& contributions, const at::Tensor& result) {
  at::Tensor sum = result;  // the same memory as `result`
  sum.copy_(contributions[0]);
  for (std::int64_t rank = 1; rank < contributions.size(0); ++rank) {
    const at::Tensor next = contributions[rank];
    switch (how.kind) {
      case Kind::PRODUCT: sum.mul_(next); break;
      case Kind::MIN: at::minimum_out(sum, sum, next); break;
      case Kind::MAX: at::maximum_out(sum, sum, next); break;
      case Kind::BAND: sum.bitwise_and_(next); break;
      case Kind::BOR: sum.bitwise_or_(next); break;
      case Kind::BXOR: sum.bitwise_xor_(next); break;
      default: sum.add_(next);
    }
  }
  if (how.kind == Kind::AVG) sum.div_(contributions.size(0), "trunc");
}

}  // namespace stretto_torch
