#pragma once
// NCCL's header. Functions of these names that the library defines must have default visibility, so that it exports them.
#pragma GCC visibility push(default)
#include <nccl.h>

// From nccl_device.h, which is for device code: the host functions that take a communicator.
extern "C" {
struct ncclTeam;
struct ncclDevCommRequirements;
struct ncclDevComm;
struct ncclGinBarrierHandle;
struct ncclDevResourceRequirements;
struct ncclTeam {
  int nRanks, rank, stride;
};
#define STRETTO_NCCL_DEVICE_API(prefix)                                                                                   \
  ncclResult_t prefix##ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements* wanted, ncclDevComm* devComm);   \
  ncclResult_t prefix##ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* devComm);                                   \
  ncclResult_t prefix##ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam team, int nBarriers,                     \
                                                       ncclGinBarrierHandle* handle, ncclDevResourceRequirements* needs); \
  ncclTeam prefix##ncclTeamWorld(ncclComm_t comm);                                                                        \
  ncclTeam prefix##ncclTeamLsa(ncclComm_t comm);                                                                          \
  ncclTeam prefix##ncclTeamRail(ncclComm_t comm);                                                                         \
  int prefix##ncclTeamRankToWorld(ncclComm_t comm, ncclTeam team, int rank);                                              \
  int prefix##ncclTeamRankToLsa(ncclComm_t comm, ncclTeam team, int rank);
STRETTO_NCCL_DEVICE_API()
STRETTO_NCCL_DEVICE_API(p)
#undef STRETTO_NCCL_DEVICE_API
}
#pragma GCC visibility pop

// Every NCCL function that the door defines: those that take or make a communicator, and groups. The others (ncclMemAlloc,
// ncclGetVersion, ...) remain the real library's.
#define STRETTO_NCCL_FUNCTIONS(F) \
  F(GetUniqueId)                  \
  F(CommInitRank)                 \
  F(CommInitRankConfig)           \
  F(CommInitRankScalable)         \
  F(CommInitAll)                  \
  F(CommFinalize)                 \
  F(CommDestroy)                  \
  F(CommAbort)                    \
  F(CommRevoke)                   \
  F(CommSplit)                    \
  F(CommShrink)                   \
  F(CommGetAsyncError)            \
  F(CommCount)                    \
  F(CommCuDevice)                 \
  F(CommUserRank)                 \
  F(CommRegister)                 \
  F(CommDeregister)               \
  F(CommWindowRegister)           \
  F(CommWindowDeregister)         \
  F(GetLastError)                 \
  F(RedOpCreatePreMulSum)         \
  F(RedOpDestroy)                 \
  F(Reduce)                       \
  F(Bcast)                        \
  F(Broadcast)                    \
  F(AllReduce)                    \
  F(ReduceScatter)                \
  F(AllGather)                    \
  F(AlltoAll)                     \
  F(Gather)                       \
  F(Scatter)                      \
  F(Send)                         \
  F(Recv)                         \
  F(GroupStart)                   \
  F(GroupEnd)                     \
  F(GroupSimulateEnd)             \
  F(DevCommCreate)                \
  F(DevCommDestroy)               \
  F(GinBarrierCreateRequirement)  \
  F(TeamWorld)                    \
  F(TeamLsa)                      \
  F(TeamRail)                     \
  F(TeamRankToWorld)              \
  F(TeamRankToLsa)
