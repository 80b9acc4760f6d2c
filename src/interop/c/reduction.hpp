#pragma once
#include "interop/c/handles.hpp"

namespace stretto::c {

DType dtype_of_c(strettoDataType_t datatype);  // throws for an unknown type

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
};
// Returns the reduction that `op` names on `comm`. Throws if there is none, or if it was made for another type.
Reduction reduction_of(strettoComm& comm, strettoRedOp_t op, strettoDataType_t datatype);

}  // namespace stretto::c
