#pragma once
#include "calls.hpp"
#include "door.hpp"

namespace stretto::mpi_door {

// describe_allreduce(sendbuf, ..., on, task) and so on, one for each call that can be served. It fills the task, or returns
// why the call must be forwarded.
//
// All ranks must reach the same answer, and each rank sees only its own arguments. So the answer may depend only on values
// that MPI requires to be equal on all ranks. For reductions these are count, type and operation. For other calls there are
// none: MPI requires equal type signatures only, and one rank may give a derived type where another gives a predefined one.
// So such calls are served for all types (carried.hpp). Arguments that MPI forbids are the exception: the MPI must refuse
// them, and no rank of a correct program has any.
#define STRETTO_DESCRIBE(name, lower, parameters, arguments) \
  Outcome describe_##lower(STRETTO_LIST parameters const Served& on, Task& task);
STRETTO_SERVED_CALLS(STRETTO_DESCRIBE)
#undef STRETTO_DESCRIBE

}  // namespace stretto::mpi_door
