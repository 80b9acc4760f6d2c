#include "interop/nccl/calls/group.hpp"

#include <utility>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/trial.hpp"

namespace stretto::nccl_door {
namespace {

struct Placed {
  CommPointer comm;
  cudaStream_t stream;
};

struct Group {
  int depth = 0;
  std::vector<Join> joins;
  std::vector<Split> splits;
  std::vector<std::function<ncclResult_t()>> actions;
  std::vector<Placed> by_nccl;  // on communicators that both libraries serve
  std::vector<Placed> by_stretto;
  ncclResult_t failure = ncclSuccess;
  std::string sentence;  // empty: ncclGetLastError() is NCCL's
};
thread_local Group group;

void wait_for_the_other(const Placed& placed, Comm::Last self) {
  Comm& comm = *placed.comm;
  if (comm.last != Comm::Last::nobody && comm.last != self) cuda().wait(placed.stream, comm.place);
}

void remember(const Placed& placed, Comm::Last self) {
  Comm& comm = *placed.comm;
  if (comm.place == nullptr) comm.place = cuda().create_event();
  cuda().record(comm.place, placed.stream);
  comm.last = self;
}

// Calls a function with an invalid handle: the C interface then starts nothing that its group has collected.
void spoil_strettos_part() { strettoAllReduce(nullptr, nullptr, 0, strettoInt8, strettoSum, STRETTO_COMM_NULL, nullptr); }

ncclResult_t end_strettos_part(const Group& ended) {
  if (ended.failure != ncclSuccess) {
    spoil_strettos_part();
    strettoGroupEnd();
    return ended.sentence.empty() ? ended.failure : refuse_with(ended.failure, ended.sentence);
  }
  const auto each_of_both = [&](auto what) {
    for (const Placed& placed : ended.by_stretto) {
      if (!placed.comm->shared) what(placed, Comm::Last::stretto);
    }
  };
  each_of_both(wait_for_the_other);
  const ncclResult_t result = answer_of(strettoGroupEnd());
  if (result == ncclSuccess) {
    each_of_both(remember);
  } else {
    for (const Placed& placed : ended.by_stretto) forget(placed.stream);
  }
  return result;
}

// Finishes the splits of all ranks that this thread makes together.
void finish(const std::vector<Split>& splits) {
  std::vector<RankOnGpu> made;
  for (const Split& split : splits) {
    if (*split.part != nullptr) made.push_back({*split.part, split.parent->device});
  }
  if (made.empty()) return;
  try {
    try_gpus(made);
  } catch (...) {
    for (const RankOnGpu& one : made) strettoCommAbort(one.ranks);
    throw;
  }
  for (const Split& split : splits) {
    if (*split.part == nullptr) continue;
    auto comm = std::make_shared<Comm>();
    comm->shared = split.parent->shared;
    comm->ranks = *split.part;
    check(strettoCommUserRank(comm->ranks, &comm->rank));
    check(strettoCommCount(comm->ranks, &comm->size));
    comm->device = split.parent->device;
    comm->served = split.parent->served;
    if (comm->shared) {
      *split.handle = add_shared(comm);
    } else {
      add_served(*split.handle, comm);
    }
  }
}

ncclResult_t first_of(ncclResult_t one, ncclResult_t other) { return one == ncclSuccess ? other : one; }

}  // namespace

bool in_group() { return group.depth > 0; }

ncclResult_t group_start() {
  const ncclResult_t result = real_nccl().GroupStart();
  if (result == ncclSuccess && group.depth++ == 0) strettoGroupStart();
  return result;
}

ncclResult_t group_end() {
  if (group.depth == 0 || --group.depth > 0) return real_nccl().GroupEnd();
  Group ended = std::exchange(group, {});
  const ncclResult_t by_nccl = real_nccl().GroupEnd();
  const bool went_well = by_nccl == ncclSuccess || by_nccl == ncclInProgress;
  if (went_well) {
    for (const Placed& each : ended.by_nccl) remember(each, Comm::Last::nccl);
  } else if (ended.failure == ncclSuccess && !ended.by_stretto.empty()) {
    ended.failure = by_nccl;
    ended.sentence = "NCCL's part of this group failed, and so Stretto's was not begun.";
  }
  const ncclResult_t by_stretto = end_strettos_part(ended);
  // Communicators end even if the operations failed, because the calls that end them have returned success.
  ncclResult_t result = by_nccl;
  for (const auto& action : ended.actions) result = first_of(result, action());
  if (!went_well) return by_nccl;
  if (by_stretto != ncclSuccess) return by_stretto;
  finish(ended.splits);
  return ended.joins.empty() ? result : first_of(result, join(ended.joins));
}

ncclResult_t group_simulate_end(ncclSimInfo_t* info) {
  if (group.depth == 0) return real_nccl().GroupSimulateEnd(info);
  const ncclResult_t result = real_nccl().GroupSimulateEnd(info);  // ends NCCL's group without running it
  if (--group.depth > 0) return result;
  const Group ended = std::exchange(group, {});
  spoil_strettos_part();
  strettoGroupEnd();
  const std::size_t others = ended.joins.size() + ended.splits.size() + ended.actions.size();
  if (ended.by_stretto.empty() && others == 0) return result;
  return refuse(
      ncclInvalidUsage,
      "ncclGroupSimulateEnd ended a group with {} operations of Stretto's and {} communicators to be made or ended, "
      "which cannot be simulated; nothing of it happens.",
      ended.by_stretto.size(), others);
}

ncclResult_t join_or_collect(Join join) {
  if (group.depth > 0) {
    group.joins.push_back(std::move(join));
    return ncclSuccess;
  }
  std::vector<Join> one;
  one.push_back(std::move(join));
  return nccl_door::join(one);
}

ncclResult_t do_or_collect(std::function<ncclResult_t()> action) {
  if (group.depth == 0) return action();
  group.actions.push_back(std::move(action));
  return ncclSuccess;
}

ncclResult_t finish_or_collect(Split split) {
  if (group.depth == 0) {
    finish({std::move(split)});
  } else {
    group.splits.push_back(std::move(split));
  }
  return ncclSuccess;
}

void fail_group(ncclResult_t result) {
  if (group.depth == 0 || result == ncclSuccess || result == ncclInProgress || group.failure != ncclSuccess) return;
  group.failure = result;
  group.sentence = last_sentence() == nullptr ? "" : last_sentence();
}

ncclResult_t put_by_nccl(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put) {
  if (cuda().is_capturing(stream)) return put();  // the call runs when the program launches its graph
  const Placed placed{comm, stream};
  wait_for_the_other(placed, Comm::Last::nccl);
  const ncclResult_t result = put();
  if (result != ncclSuccess && result != ncclInProgress) return result;
  if (group.depth > 0) {
    group.by_nccl.push_back(placed);
  } else {
    remember(placed, Comm::Last::nccl);
  }
  return result;
}

ncclResult_t put_by_stretto(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put) {
  const Placed placed{comm, stream};
  const bool now = group.depth == 0;
  if (now && !comm->shared) wait_for_the_other(placed, Comm::Last::stretto);
  const ncclResult_t result = put();
  if (!now) {
    if (result == ncclSuccess) group.by_stretto.push_back(placed);
  } else if (result == ncclSuccess) {
    if (!comm->shared) remember(placed, Comm::Last::stretto);
  } else if (result != ncclInvalidArgument && result != ncclInvalidUsage) {
    forget(stream);
  }
  return result;
}

}  // namespace stretto::nccl_door
