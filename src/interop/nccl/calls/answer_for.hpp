#pragma once
#include <string_view>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/calls/group.hpp"
#include "interop/nccl/report.hpp"

// Decides whether the door or NCCL answers a call on a communicator, for calls that are not operations.
namespace stretto::nccl_door {

// Refuses a function that only NCCL has, on a communicator that NCCL does not know.
inline ncclResult_t refuse_shared(const char* function, const Comm& comm) {
  return refuse(
      ncclInvalidUsage,
      "{} is not there for a communicator whose ranks share a GPU (rank {} of {}): Stretto serves it, for NCCL refuses "
      "it.",
      function, comm.rank, comm.size);
}

// Reports who has answered a call and why, and has an open group fail with it; returns the result.
inline ncclResult_t noted(const char* function, By by, std::string_view why, ncclResult_t result) {
  if (by == By::stretto && result != ncclSuccess) {
    by = By::nobody;
    if (last_sentence() != nullptr) why = last_sentence();
  }
  note(function, by, why);
  fail_group(result);
  return result;
}

// Calls ours(comm) for a communicator in which the door takes part, and forward() for all others.
template <class Ours, class Forward>
ncclResult_t answer_for(const char* function, ncclComm_t handle, const Ours& ours, const Forward& forward) {
  if (inside_nccl()) return forward();
  const CommPointer comm = find(handle);
  By by = By::nccl;
  std::string_view why = "the communicator is NCCL's alone";
  const ncclResult_t result = answer([&]() -> ncclResult_t {
    if (!comm) return forward();
    if (comm->shared) by = By::stretto;
    why = comm->shared ? gpu_is_shared : "the handle is NCCL's";
    if (comm->shared) require_open(*comm, function);
    return ours(comm);
  });
  return noted(function, by, why, result);
}

// For functions that a shared communicator does not have. On NCCL's own communicators NCCL answers.
template <class Forward>
ncclResult_t forward_or_refuse(const char* function, ncclComm_t handle, const Forward& forward) {
  return answer_for(
      function, handle, [&](const CommPointer& comm) { return comm->shared ? refuse_shared(function, *comm) : forward(); },
      forward);
}

}  // namespace stretto::nccl_door
