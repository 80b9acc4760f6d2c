#pragma once
#include "interop/c/handles.hpp"

namespace stretto::c {

DType dtype_of_c(strettoDataType_t datatype);  // throws where there is no such type

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
};
// Of an operation of that type on comm; throws where the communicator has no such reduction, or it is for another type.
Reduction reduction_of(strettoComm& comm, strettoRedOp_t op, strettoDataType_t datatype);

}  // namespace stretto::c
