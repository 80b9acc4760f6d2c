#pragma once
#include <functional>
#include <string>
#include <vector>

#include "interop/nccl/join.hpp"

// The calls that each thread makes between ncclGroupStart and ncclGroupEnd. Each library collects its own. At the end of the
// outermost group NCCL's calls start first and Stretto's second, each in the order of the program. All ranks keep this
// order, whichever library they called first. Communicators are made after both.
namespace stretto::nccl_door {

bool in_group();
ncclResult_t group_start();
ncclResult_t group_end();
ncclResult_t group_simulate_end(ncclSimInfo_t* info);

// Makes the communicator now, or at the end of the group.
ncclResult_t join_or_collect(Join join);
// Runs the action now, or at the end of the group after both libraries' calls, even if these failed.
ncclResult_t do_or_collect(std::function<ncclResult_t()> action);

// A split by Stretto, which finishes now or at the end of the group. NCCL also splits its part of its own handles.
struct Split {
  CommPointer parent;
  std::shared_ptr<strettoComm_t> part;  // of this rank; null if it joins no part
  ncclComm_t* handle = nullptr;         // the program's result pointer; for NCCL's own handles NCCL sets it
};
ncclResult_t finish_or_collect(Split split);

// Records that a call of this group failed. None of Stretto's calls in it then start.
void fail_group(ncclResult_t result);

// Keep the two libraries in order on an NCCL communicator that both serve: the call's stream waits for the other library's
// last call, on whatever stream that was. put() enqueues the call, or adds it to the group.
ncclResult_t put_by_nccl(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put);
ncclResult_t put_by_stretto(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put);

}  // namespace stretto::nccl_door
