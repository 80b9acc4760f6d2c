// NCCL's calls that make, query and end communicators.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "interop/nccl/calls/answer_for.hpp"
#include "interop/nccl/trial.hpp"
#include "interop/nccl/unique_id.hpp"

namespace stretto::nccl_door {
namespace {

strettoConfig_t named(const KeptConfig* config) {
  strettoConfig_t result = STRETTO_CONFIG_INITIALIZER;
  if (config != nullptr) result.commName = config->name();
  return result;
}

ncclResult_t refuse_init(const char* function, ncclResult_t result) {
  note(function, By::nobody, last_sentence() == nullptr ? "" : last_sentence());
  return result;
}

// Makes a communicator from an id that the door made; inside a group, at its end.
ncclResult_t init(const char* function, ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank,
                  ncclConfig_t* config) {
  if (comm == nullptr || nranks < 1 || rank < 0 || rank >= nranks) {
    return refuse_init(function, refuse(ncclInvalidArgument, "{} was to make rank {} of {} and put its handle at {}.",
                                        function, rank, nranks, static_cast<void*>(comm)));
  }
  Join join;
  join.function = function;
  join.comm = comm;
  join.nranks = nranks;
  join.id = id;
  join.rank = rank;
  if (config != nullptr) join.config = std::make_shared<KeptConfig>(config);
  const ncclResult_t found = answer([&] {
    join.device = cuda().device();
    return ncclSuccess;
  });
  return found == ncclSuccess ? join_or_collect(std::move(join)) : refuse_init(function, found);
}

constexpr const char* made_without_the_door = "a process without the door, or NCCL_COMM_ID, made the id";

ncclResult_t split(const CommPointer& comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* given) {
  if (newcomm == nullptr) return refuse(ncclInvalidArgument, "ncclCommSplit got NULL for its result.");
  const std::unique_ptr<KeptConfig> kept = given == nullptr ? nullptr : std::make_unique<KeptConfig>(given);
  strettoConfig_t config = named(kept.get());
  const Split split{comm, std::make_shared<strettoComm_t>(nullptr), newcomm};
  if (comm->shared) *newcomm = nullptr;
  check(strettoCommSplit(comm->ranks, color, key, split.part.get(), &config));
  return finish_or_collect(split);
}

ncclResult_t split_both(ncclComm_t handle, const CommPointer& comm, int color, int key, ncclComm_t* newcomm,
                        ncclConfig_t* config) {
  const ncclResult_t by_nccl = real_nccl().CommSplit(handle, color, key, newcomm, config);
  if (by_nccl != ncclSuccess && by_nccl != ncclInProgress) {
    strettoCommAbort(comm->ranks);  // so that the other ranks do not wait for this one
    forget(handle);
    return by_nccl;
  }
  const ncclResult_t by_stretto = split(comm, color, key, newcomm, config);
  return by_stretto == ncclSuccess ? by_nccl : by_stretto;
}

// The remaining ranks use the old communicator to tell each other where they meet. Excluded ranks do not call this.
ncclResult_t shrink(const CommPointer& comm, const int* excluded, int count, ncclComm_t* newcomm, ncclConfig_t* given,
                    int flags) {
  if (in_group()) return refuse(ncclInvalidUsage, "ncclCommShrink of ranks that share a GPU stands outside of groups.");
  if (flags != NCCL_SHRINK_DEFAULT) {
    return refuse(ncclInvalidUsage,
                  "ncclCommShrink got flags {}; of ranks that share a GPU only NCCL_SHRINK_DEFAULT is there: once a rank is "
                  "lost, abort the communicator and make a new one of those that remain.",
                  flags);
  }
  if (newcomm == nullptr || count < 0 || (count > 0 && excluded == nullptr)) {
    return refuse(ncclInvalidArgument, "ncclCommShrink got a list of {} ranks at {} and a result at {}.", count,
                  static_cast<const void*>(excluded), static_cast<void*>(newcomm));
  }
  std::vector<int> remaining;
  for (int rank = 0; rank < comm->size; ++rank) {
    if (std::find(excluded, excluded + count, rank) == excluded + count) remaining.push_back(rank);
  }
  const auto place = std::find(remaining.begin(), remaining.end(), comm->rank);
  if (static_cast<int>(remaining.size()) + count != comm->size || place == remaining.end()) {
    return refuse(
        ncclInvalidArgument,
        "ncclCommShrink on rank {} of {} leaves out {} ranks, of which {} are others than this; name each rank once, "
        "and do not call it on those.",
        comm->rank, comm->size, count, comm->size - static_cast<int>(remaining.size()));
  }
  *newcomm = nullptr;
  const std::unique_ptr<KeptConfig> kept = given == nullptr ? nullptr : std::make_unique<KeptConfig>(given);
  strettoConfig_t config = named(kept.get());
  const int rank = static_cast<int>(place - remaining.begin());
  strettoUniqueId id{};
  if (rank == 0) {
    check(strettoGetUniqueId(&id));
    for (std::size_t i = 1; i < remaining.size(); ++i) {
      check(strettoSend(&id, sizeof id, strettoUint8, remaining[i], comm->ranks, nullptr));
    }
  } else {
    check(strettoRecv(&id, sizeof id, strettoUint8, remaining.front(), comm->ranks, nullptr));
  }
  const Split smaller{comm, std::make_shared<strettoComm_t>(nullptr), newcomm};
  check(strettoCommInitRankConfig(smaller.part.get(), static_cast<int>(remaining.size()), id, rank, &config));
  return finish_or_collect(smaller);
}

// All operations of this rank that are in flight end first.
ncclResult_t destroy_shared(ncclComm_t handle, const CommPointer& comm) {
  forget(handle);
  return do_or_collect([comm] {
    const ncclResult_t result = comm->finalized ? ncclSuccess : answer_of(strettoCommFinalize(comm->ranks));
    end_in_background(comm->ranks);
    return result;
  });
}

// A number of a communicator whose ranks share a GPU, which NCCL does not know.
template <class Forward>
ncclResult_t answer_number(const char* function, ncclComm_t handle, int Comm::*number, int* result, const Forward& forward) {
  return answer_for(
      function, handle,
      [&](const CommPointer& known) -> ncclResult_t {
        if (!known->shared) return forward();
        if (result == nullptr) return refuse(ncclInvalidArgument, "{} got NULL for its result.", function);
        *result = (*known).*number;
        return ncclSuccess;
      },
      forward);
}

}  // namespace
}  // namespace stretto::nccl_door

using namespace stretto::nccl_door;

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  if (inside_nccl()) return real_nccl().GetUniqueId(uniqueId);
  return answer([&]() -> ncclResult_t {
    const char* const place = std::getenv("NCCL_COMM_ID");
    if (place != nullptr && *place != '\0') {
      note("ncclGetUniqueId", By::nccl, "NCCL_COMM_ID says where ranks meet");
      return real_nccl().GetUniqueId(uniqueId);
    }
    if (uniqueId == nullptr) return refuse(ncclInvalidArgument, "ncclGetUniqueId got NULL for its result.");
    strettoUniqueId ours;
    check(strettoGetUniqueId(&ours));
    std::memcpy(uniqueId, &ours, sizeof ours);
    note("ncclGetUniqueId", By::stretto, "ranks have to meet before it is known whose their communicator is");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  const auto forward = [&] { return real_nccl().CommInitRank(comm, nranks, commId, rank); };
  if (inside_nccl()) return forward();
  const ncclResult_t result = answer([&] {
    if (is_ours(commId)) return init("ncclCommInitRank", comm, nranks, commId, rank, nullptr);
    note("ncclCommInitRank", By::nccl, made_without_the_door);
    return forward();
  });
  fail_group(result);
  return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config) {
  const auto forward = [&] { return real_nccl().CommInitRankConfig(comm, nranks, commId, rank, config); };
  if (inside_nccl()) return forward();
  const ncclResult_t result = answer([&] {
    if (is_ours(commId)) return init("ncclCommInitRankConfig", comm, nranks, commId, rank, config);
    note("ncclCommInitRankConfig", By::nccl, made_without_the_door);
    return forward();
  });
  fail_group(result);
  return result;
}

// Stretto uses the first id only. If NCCL serves the communicator, it gets an id of its own.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config) {
  const auto forward = [&] { return real_nccl().CommInitRankScalable(newcomm, nranks, myrank, nId, commIds, config); };
  if (inside_nccl()) return forward();
  const ncclResult_t result = answer([&]() -> ncclResult_t {
    const auto ours = commIds == nullptr || nId < 1 ? 0 : std::count_if(commIds, commIds + nId, is_ours);
    if (ours == 0) {
      note("ncclCommInitRankScalable", By::nccl, made_without_the_door);
      return forward();
    }
    if (ours < nId) {
      return refuse(
          ncclInvalidArgument,
          "ncclCommInitRankScalable got {} ids from libstretto-nccl and {} that were made without it; preload it in "
          "all processes, or in none.",
          ours, nId - ours);
    }
    return init("ncclCommInitRankScalable", newcomm, nranks, commIds[0], myrank, config);
  });
  fail_group(result);
  return result;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  note("ncclCommInitAll", By::nccl, "one thread uses all its ranks");
  return real_nccl().CommInitAll(comm, ndev, devlist);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  return answer_for(
      "ncclCommSplit", comm,
      [&](const CommPointer& known) {
        return known->shared ? split(known, color, key, newcomm, config)
                             : split_both(comm, known, color, key, newcomm, config);
      },
      [&] { return real_nccl().CommSplit(comm, color, key, newcomm, config); });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags) {
  const auto forward = [&] {
    return real_nccl().CommShrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
  };
  return answer_for(
      "ncclCommShrink", comm,
      [&](const CommPointer& known) {
        return known->shared ? shrink(known, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags) : forward();
      },
      forward);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return answer_for(
      "ncclCommFinalize", comm,
      [&](const CommPointer& known) {
        return do_or_collect([comm, known] {
          const ncclResult_t by_nccl = known->shared ? ncclSuccess : real_nccl().CommFinalize(comm);
          const ncclResult_t by_stretto = answer_of(strettoCommFinalize(known->ranks));
          known->finalized = true;
          return by_nccl == ncclSuccess ? by_stretto : by_nccl;
        });
      },
      [&] { return real_nccl().CommFinalize(comm); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return answer_for(
      "ncclCommDestroy", comm,
      [&](const CommPointer& known) {
        const ncclResult_t ours = destroy_shared(comm, known);
        const ncclResult_t by_nccl = known->shared ? ncclSuccess : real_nccl().CommDestroy(comm);
        return by_nccl == ncclSuccess ? ours : by_nccl;
      },
      [&] { return real_nccl().CommDestroy(comm); });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return answer_for(
      "ncclCommAbort", comm,
      [&](const CommPointer& known) {
        forget(comm);
        const ncclResult_t by_nccl = known->shared ? ncclSuccess : real_nccl().CommAbort(comm);
        const ncclResult_t by_stretto = answer_of(strettoCommAbort(known->ranks));
        return by_nccl == ncclSuccess ? by_stretto : by_nccl;
      },
      [&] { return real_nccl().CommAbort(comm); });
}

// Ends Stretto's part of an NCCL communicator: it must not be used after a revoke.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  const auto forward = [&] { return real_nccl().CommRevoke(comm, revokeFlags); };
  return answer_for(
      "ncclCommRevoke", comm,
      [&](const CommPointer& known) {
        if (known->shared) return refuse_shared("ncclCommRevoke", *known);
        forget(comm);
        const ncclResult_t by_nccl = forward();
        strettoCommAbort(known->ranks);
        return by_nccl;
      },
      forward);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  const auto forward = [&] { return real_nccl().CommGetAsyncError(comm, asyncError); };
  return answer_for(
      "ncclCommGetAsyncError", comm,
      [&](const CommPointer& known) -> ncclResult_t {
        if (asyncError == nullptr) return refuse(ncclInvalidArgument, "ncclCommGetAsyncError got NULL for its result.");
        if (!known->shared) {
          const ncclResult_t by_nccl = forward();
          if (by_nccl != ncclSuccess || *asyncError != ncclSuccess) return by_nccl;
        }
        strettoResult_t state = strettoSuccess;
        check(strettoCommGetAsyncError(known->ranks, &state));
        *asyncError = static_cast<ncclResult_t>(state);
        if (state != strettoSuccess) keep_last_sentence(strettoGetLastError(known->ranks));
        return ncclSuccess;
      },
      forward);
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (!inside_nccl() && last_sentence() != nullptr) return last_sentence();
  const CommPointer known = find(comm);
  return known && known->shared ? "" : real_nccl().GetLastError(comm);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return answer_number("ncclCommCount", comm, &Comm::size, count, [&] { return real_nccl().CommCount(comm, count); });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return answer_number("ncclCommUserRank", comm, &Comm::rank, rank, [&] { return real_nccl().CommUserRank(comm, rank); });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return answer_number("ncclCommCuDevice", comm, &Comm::device, device,
                       [&] { return real_nccl().CommCuDevice(comm, device); });
}
