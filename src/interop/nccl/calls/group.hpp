#pragma once
#include <functional>
#include <string>
#include <vector>

#include "interop/nccl/join.hpp"

// What stands between ncclGroupStart and ncclGroupEnd, of each thread. Both libraries collect what is theirs. At the
// outermost end NCCL's part begins first, then Stretto's, each in the order of the calls: all ranks do so, whatever they
// called first. Communicators are made behind both.
namespace stretto::nccl_door {

bool in_group();
ncclResult_t group_start();
ncclResult_t group_end();
ncclResult_t group_simulate_end(ncclSimInfo_t* info);

// Now, or at the end of the group.
ncclResult_t join_or_collect(Join join);
// Now, or after both parts of the group, where these went well.
ncclResult_t do_or_collect(std::function<ncclResult_t()> action);

// A communicator that Stretto splits, or has split when the group has ended; of NCCL's own handles NCCL does so, too.
struct Split {
  CommPointer parent;
  std::shared_ptr<strettoComm_t> part;  // this rank's; null for no part
  ncclComm_t* handle = nullptr;         // where the program wants it; of NCCL's own: where NCCL puts it
};
ncclResult_t finish_or_collect(Split split);

// A call of this group has failed: nothing of Stretto's part begins.
void fail_group(ncclResult_t result);

// Between the two libraries on one communicator of NCCL's, whose stream the call goes to: its stream waits for what the
// other library has put anywhere. put() puts the call there, or into the group.
ncclResult_t put_by_nccl(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put);
ncclResult_t put_by_stretto(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put);

}  // namespace stretto::nccl_door
