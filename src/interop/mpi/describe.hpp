#pragma once
#include "calls.hpp"
#include "door.hpp"

namespace stretto::mpi_door {

// describe_allreduce(sendbuf, ..., on, task) and so on, one for each call that can be served: fills the task, or says why
// the call is to be forwarded.
//
// All ranks must come to the same answer, each by what it sees of the call alone. So only what MPI demands to be equal on
// all ranks may decide: of reductions count, type and operation; of all else nothing, for there ranks agree on type
// signatures only, and one may give a derived type where another gives a predefined one. Those are served whatever their
// types (carried.hpp). Arguments that MPI forbids are the exception: they are left for the MPI to refuse, and no rank of a
// correct program has any.
#define STRETTO_DESCRIBE(name, lower, parameters, arguments) \
  Outcome describe_##lower(STRETTO_LIST parameters const Served& on, Task& task);
STRETTO_SERVED_CALLS(STRETTO_DESCRIBE)
#undef STRETTO_DESCRIBE

}  // namespace stretto::mpi_door
