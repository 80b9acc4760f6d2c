#include "interop/nccl/group.hpp"

#include <utility>

#include "interop/nccl/answers.hpp"
#include "interop/nccl/report.hpp"

namespace stretto::nccl_door {
namespace {

struct Placed {
  CommPointer comm;
  cudaStream_t stream;
};

struct Group {
  int depth = 0;
  std::vector<Join> joins;
  std::vector<std::function<void()>> actions;
  std::vector<Placed> by_nccl, by_stretto;  // of communicators that both libraries use
  int strettos = 0;                         // calls
  ncclResult_t failure = ncclSuccess;
  std::string sentence;
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

// The C interface then begins nothing of what it has collected.
void spoil_strettos_part() {
  strettoAllReduce(nullptr, nullptr, 0, strettoInt8, strettoSum, STRETTO_COMM_NULL, nullptr);
}

ncclResult_t end_strettos_part(const Group& ended) {
  if (ended.failure != ncclSuccess) {
    spoil_strettos_part();
    strettoGroupEnd();
    return refuse_with(ended.failure, ended.sentence);
  }
  for (const Placed& each : ended.by_stretto) wait_for_the_other(each, Comm::Last::stretto);
  const ncclResult_t result = answer_of(strettoGroupEnd());
  if (result != ncclSuccess) return result;
  for (const Placed& each : ended.by_stretto) remember(each, Comm::Last::stretto);
  return ncclSuccess;
}

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
  ncclResult_t by_nccl = real_nccl().GroupEnd();
  const bool went_well = by_nccl == ncclSuccess || by_nccl == ncclInProgress;
  if (!went_well && ended.failure == ncclSuccess && ended.strettos > 0) {
    ended.failure = by_nccl;
    ended.sentence = "NCCL's part of this group failed, and so Stretto's was not begun.";
  }
  if (went_well) {
    for (const Placed& each : ended.by_nccl) remember(each, Comm::Last::nccl);
  }
  const ncclResult_t by_stretto = end_strettos_part(ended);
  if (!went_well || by_stretto != ncclSuccess) return went_well ? by_stretto : by_nccl;
  for (const auto& action : ended.actions) action();
  const ncclResult_t joined = ended.joins.empty() ? ncclSuccess : join(ended.joins);
  return joined == ncclSuccess ? by_nccl : joined;
}

ncclResult_t group_simulate_end(ncclSimInfo_t* info) {
  if (group.depth == 0) return real_nccl().GroupSimulateEnd(info);
  const bool has_ours = group.strettos > 0 || !group.joins.empty() || !group.actions.empty();
  const ncclResult_t result = real_nccl().GroupSimulateEnd(info);  // ends NCCL's part, which nothing of happens
  if (--group.depth > 0) return result;
  const Group ended = std::exchange(group, {});
  spoil_strettos_part();
  strettoGroupEnd();
  if (!has_ours) return result;
  return refuse(ncclInvalidUsage,
                "ncclGroupSimulateEnd ended a group with {} operations of Stretto's and {} new communicators, which cannot be "
                "simulated; nothing of it happens.",
                ended.strettos, ended.joins.size());
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

void at_end_of_group(std::function<void()> action) { group.actions.push_back(std::move(action)); }

void fail_group(ncclResult_t result) {
  if (group.depth == 0 || result == ncclSuccess || result == ncclInProgress || group.failure != ncclSuccess) return;
  group.failure = result;
  group.sentence = last_sentence() == nullptr ? "" : last_sentence();
}

ncclResult_t put_by_nccl(const CommPointer& comm, cudaStream_t stream, const std::function<ncclResult_t()>& put) {
  if (cuda().is_capturing(stream)) return put();  // happens when the program launches its graph
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
  const bool both = !comm->shared;
  if (both && group.depth == 0) wait_for_the_other(placed, Comm::Last::stretto);
  const ncclResult_t result = put();
  if (result != ncclSuccess) {
    if (group.depth == 0) forget(stream);
    return result;
  }
  if (group.depth > 0) {
    ++group.strettos;
    if (both) group.by_stretto.push_back(placed);
  } else if (both) {
    remember(placed, Comm::Last::stretto);
  }
  return result;
}

}  // namespace stretto::nccl_door
