// NCCL's other calls on a communicator: registered memory, premultiplied sums, and support for device code.
#include "interop/nccl/calls/answer_for.hpp"

using namespace stretto::nccl_door;

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return forward_or_refuse("ncclCommRegister", comm, [&] { return real_nccl().CommRegister(comm, buff, size, handle); });
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return forward_or_refuse("ncclCommDeregister", comm, [&] { return real_nccl().CommDeregister(comm, handle); });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags) {
  return forward_or_refuse("ncclCommWindowRegister", comm,
                           [&] { return real_nccl().CommWindowRegister(comm, buff, size, win, winFlags); });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return forward_or_refuse("ncclCommWindowDeregister", comm, [&] { return real_nccl().CommWindowDeregister(comm, win); });
}

// If both libraries serve a communicator, each gets the factor. If Stretto cannot support it, only a call that Stretto
// serves reports this: the program may use the factor in NCCL's calls alone.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  const auto forward = [&] { return real_nccl().RedOpCreatePreMulSum(op, scalar, datatype, residence, comm); };
  return answer_for(
      "ncclRedOpCreatePreMulSum", comm,
      [&](const CommPointer& known) -> ncclResult_t {
        if (op == nullptr) return refuse(ncclInvalidArgument, "ncclRedOpCreatePreMulSum got NULL for its result.");
        strettoRedOp_t ours = strettoSum;
        const auto by_stretto = [&] {
          return strettoRedOpCreatePreMulSum(&ours, scalar, static_cast<strettoDataType_t>(datatype),
                                             static_cast<strettoScalarResidence_t>(residence), known->ranks);
        };
        if (known->shared) {
          check(by_stretto());
          *op = static_cast<ncclRedOp_t>(ours);
          return ncclSuccess;
        }
        const ncclResult_t result = forward();
        if (result != ncclSuccess) return result;
        if (by_stretto() == strettoSuccess) {
          known->reductions[*op] = {ours, ""};
        } else {
          known->reductions[*op] = {std::nullopt, strettoGetLastError(nullptr)};
        }
        return ncclSuccess;
      },
      forward);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const auto forward = [&] { return real_nccl().RedOpDestroy(op, comm); };
  return answer_for(
      "ncclRedOpDestroy", comm,
      [&](const CommPointer& known) {
        if (known->shared) return answer_of(strettoRedOpDestroy(static_cast<strettoRedOp_t>(op), known->ranks));
        const ncclResult_t by_nccl = forward();
        const auto ended = known->reductions.extract(op);
        if (ended.empty() || !ended.mapped().ours) return by_nccl;
        const ncclResult_t by_stretto = answer_of(strettoRedOpDestroy(*ended.mapped().ours, known->ranks));
        return by_nccl == ncclSuccess ? by_stretto : by_nccl;
      },
      forward);
}

// ---- support for device code

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements* wanted, ncclDevComm* devComm) {
  return forward_or_refuse("ncclDevCommCreate", comm, [&] { return real_nccl().DevCommCreate(comm, wanted, devComm); });
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* devComm) {
  return forward_or_refuse("ncclDevCommDestroy", comm, [&] { return real_nccl().DevCommDestroy(comm, devComm); });
}

ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam team, int nBarriers, ncclGinBarrierHandle* handle,
                                             ncclDevResourceRequirements* needs) {
  return forward_or_refuse("ncclGinBarrierCreateRequirement", comm,
                           [&] { return real_nccl().GinBarrierCreateRequirement(comm, team, nBarriers, handle, needs); });
}

// These functions cannot return an error. The ranks of a shared communicator never access each other's memory, so each is
// alone in its LSA team, and the rail team contains all ranks.
namespace {

CommPointer shared_one(ncclComm_t handle) {
  if (inside_nccl()) return nullptr;
  CommPointer comm = find(handle);
  return comm && comm->shared ? comm : nullptr;
}

}  // namespace

ncclTeam ncclTeamWorld(ncclComm_t comm) {
  const CommPointer shared = shared_one(comm);
  return shared ? ncclTeam{shared->size, shared->rank, 1} : real_nccl().TeamWorld(comm);
}

ncclTeam ncclTeamLsa(ncclComm_t comm) {
  const CommPointer shared = shared_one(comm);
  return shared ? ncclTeam{1, 0, 1} : real_nccl().TeamLsa(comm);
}

ncclTeam ncclTeamRail(ncclComm_t comm) {
  const CommPointer shared = shared_one(comm);
  return shared ? ncclTeam{shared->size, shared->rank, 1} : real_nccl().TeamRail(comm);
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam team, int rank) {
  const CommPointer shared = shared_one(comm);
  return shared ? shared->rank + (rank - team.rank) * team.stride : real_nccl().TeamRankToWorld(comm, team, rank);
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam team, int rank) {
  const CommPointer shared = shared_one(comm);
  return shared ? (rank - team.rank) * team.stride : real_nccl().TeamRankToLsa(comm, team, rank);
}
