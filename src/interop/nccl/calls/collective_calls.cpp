// NCCL's operations, as the program calls them. Stretto or NCCL serves each.
#include <string_view>

#include "interop/nccl/calls/answer_for.hpp"

namespace stretto::nccl_door {
namespace {

static_assert(static_cast<int>(strettoFloat8e5m2) == static_cast<int>(ncclFloat8e5m2));
static_assert(static_cast<int>(strettoBfloat16) == static_cast<int>(ncclBfloat16));
static_assert(static_cast<int>(strettoFloat64) == static_cast<int>(ncclFloat64));
static_assert(static_cast<int>(strettoMax) == static_cast<int>(ncclMax));
static_assert(static_cast<int>(strettoAvg) == static_cast<int>(ncclAvg));
static_assert(static_cast<int>(strettoNumOps) == static_cast<int>(ncclNumOps));

strettoDataType_t type_of(ncclDataType_t type) { return static_cast<strettoDataType_t>(type); }

struct Asked {
  const char* function;
  Collective collective;
  const void* input;
  const void* output;
  std::size_t count;
  int root = 0;
  ncclRedOp_t op = ncclSum;
};

// Checks the buffers that this rank reads or writes.
void require_gpu_memory(const Asked& asked, const Comm& comm) {
  const bool from_root = asked.collective == Collective::broadcast || asked.collective == Collective::scatter;
  const bool to_root = asked.collective == Collective::reduce || asked.collective == Collective::gather;
  const bool reads = asked.collective != Collective::recv && (!from_root || comm.rank == asked.root);
  const bool writes = asked.collective != Collective::send && (!to_root || comm.rank == asked.root);
  const auto require = [&](bool matters, const void* buffer) {
    if (!matters || (buffer != nullptr && cuda().is_on_gpu(buffer))) return;
    throw Refusal(
        ncclInvalidArgument,
        fmt::format("{} of {} elements got {} on rank {}, which is no memory of a GPU; Stretto serves this call, and "
                    "takes what cudaMalloc gives.",
                    asked.function, asked.count, buffer, comm.rank));
  };
  require(reads, asked.input);
  require(writes, asked.output);
}

void require_no_graph(const Asked& asked, const Comm& comm, cudaStream_t stream) {
  if (!cuda().is_capturing(stream)) return;
  throw Refusal(ncclInvalidUsage,
                fmt::format("{} of {} elements on rank {} cannot become part of the graph that is made of its stream: {}.",
                            asked.function, asked.count, comm.rank,
                            comm.shared ? "ranks that share a GPU meet on the host, which a graph does not; call it outside"
                                        : "Stretto serves it; leave it to NCCL with STRETTO_NCCL_SERVE=none, or call it "
                                          "outside"));
}

strettoRedOp_t op_of(const Asked& asked, const Comm& comm) {
  if (comm.shared || asked.op < ncclNumOps) return static_cast<strettoRedOp_t>(asked.op);
  const auto found = comm.reductions.find(asked.op);
  if (found != comm.reductions.end() && found->second.ours) return *found->second.ours;
  throw Refusal(
      ncclInvalidUsage,
      fmt::format("{} got reduction {}, which Stretto, which serves this call, does not have; leave it to NCCL with "
                  "STRETTO_NCCL_SERVE=none. {}",
                  asked.function, static_cast<int>(asked.op),
                  found == comm.reductions.end() ? "It was not made, or it is destroyed." : found->second.why_not));
}

// Calls serve(ranks, op, stream) if Stretto serves the operation, otherwise forward().
template <class Serve, class Forward>
ncclResult_t operate(const Asked& asked, ncclComm_t handle, cudaStream_t stream, const Serve& serve,
                     const Forward& forward) {
  if (inside_nccl()) return forward();
  const CommPointer comm = find(handle);
  By by = By::nccl;
  std::string_view why = "the communicator is NCCL's alone";
  const ncclResult_t result = answer([&]() -> ncclResult_t {
    if (!comm) return forward();
    const auto rule = comm->served.find(asked.collective);
    if (!comm->shared && rule == comm->served.end()) {
      why = "STRETTO_NCCL_SERVE leaves it to NCCL";
      return put_by_nccl(comm, stream, forward);
    }
    by = By::stretto;
    why = comm->shared ? std::string_view(gpu_is_shared) : rule->second;
    require_open(*comm, asked.function);
    if (asked.count == 0) return ncclSuccess;  // on all ranks: there is nothing to do
    require_gpu_memory(asked, *comm);
    require_no_graph(asked, *comm, stream);
    const strettoRedOp_t op = op_of(asked, *comm);
    return put_by_stretto(comm, stream, [&] { return answer_of(serve(comm->ranks, op, stream_of(stream))); });
  });
  return noted(asked.function, by, why, result);
}

}  // namespace
}  // namespace stretto::nccl_door

using stretto::Collective;
using namespace stretto::nccl_door;

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclAllReduce", Collective::all_reduce, sendbuff, recvbuff, count, 0, op}, comm, stream,
      [&](auto ranks, auto reduction, auto wrapped) {
        return strettoAllReduce(sendbuff, recvbuff, count, type_of(datatype), reduction, ranks, wrapped);
      },
      [&] { return real_nccl().AllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream); });
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclReduce", Collective::reduce, sendbuff, recvbuff, count, root, op}, comm, stream,
      [&](auto ranks, auto reduction, auto wrapped) {
        return strettoReduce(sendbuff, recvbuff, count, type_of(datatype), reduction, root, ranks, wrapped);
      },
      [&] { return real_nccl().Reduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream); });
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclReduceScatter", Collective::reduce_scatter, sendbuff, recvbuff, recvcount, 0, op}, comm, stream,
      [&](auto ranks, auto reduction, auto wrapped) {
        return strettoReduceScatter(sendbuff, recvbuff, recvcount, type_of(datatype), reduction, ranks, wrapped);
      },
      [&] { return real_nccl().ReduceScatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream); });
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream) {
  return operate(
      {"ncclAllGather", Collective::all_gather, sendbuff, recvbuff, sendcount}, comm, stream,
      [&](auto ranks, auto, auto wrapped) {
        return strettoAllGather(sendbuff, recvbuff, sendcount, type_of(datatype), ranks, wrapped);
      },
      [&] { return real_nccl().AllGather(sendbuff, recvbuff, sendcount, datatype, comm, stream); });
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclBroadcast", Collective::broadcast, sendbuff, recvbuff, count, root}, comm, stream,
      [&](auto ranks, auto, auto wrapped) {
        return strettoBroadcast(sendbuff, recvbuff, count, type_of(datatype), root, ranks, wrapped);
      },
      [&] { return real_nccl().Broadcast(sendbuff, recvbuff, count, datatype, root, comm, stream); });
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclBcast", Collective::broadcast, buff, buff, count, root}, comm, stream,
      [&](auto ranks, auto, auto wrapped) { return strettoBcast(buff, count, type_of(datatype), root, ranks, wrapped); },
      [&] { return real_nccl().Bcast(buff, count, datatype, root, comm, stream); });
}

ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream) {
  return operate(
      {"ncclAlltoAll", Collective::all_to_all, sendbuff, recvbuff, count}, comm, stream,
      [&](auto ranks, auto, auto wrapped) {
        return strettoAlltoAll(sendbuff, recvbuff, count, type_of(datatype), ranks, wrapped);
      },
      [&] { return real_nccl().AlltoAll(sendbuff, recvbuff, count, datatype, comm, stream); });
}

ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclGather", Collective::gather, sendbuff, recvbuff, count, root}, comm, stream,
      [&](auto ranks, auto, auto wrapped) {
        return strettoGather(sendbuff, recvbuff, count, type_of(datatype), root, ranks, wrapped);
      },
      [&] { return real_nccl().Gather(sendbuff, recvbuff, count, datatype, root, comm, stream); });
}

ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {"ncclScatter", Collective::scatter, sendbuff, recvbuff, count, root}, comm, stream,
      [&](auto ranks, auto, auto wrapped) {
        return strettoScatter(sendbuff, recvbuff, count, type_of(datatype), root, ranks, wrapped);
      },
      [&] { return real_nccl().Scatter(sendbuff, recvbuff, count, datatype, root, comm, stream); });
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operate(
      {"ncclSend", Collective::send, sendbuff, nullptr, count, peer}, comm, stream,
      [&](auto ranks, auto, auto wrapped) { return strettoSend(sendbuff, count, type_of(datatype), peer, ranks, wrapped); },
      [&] { return real_nccl().Send(sendbuff, count, datatype, peer, comm, stream); });
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operate(
      {"ncclRecv", Collective::recv, nullptr, recvbuff, count, peer}, comm, stream,
      [&](auto ranks, auto, auto wrapped) { return strettoRecv(recvbuff, count, type_of(datatype), peer, ranks, wrapped); },
      [&] { return real_nccl().Recv(recvbuff, count, datatype, peer, comm, stream); });
}

ncclResult_t ncclGroupStart() {
  if (inside_nccl()) return real_nccl().GroupStart();
  return answer(group_start);
}

ncclResult_t ncclGroupEnd() {
  if (inside_nccl()) return real_nccl().GroupEnd();
  return answer(group_end);
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  if (inside_nccl()) return real_nccl().GroupSimulateEnd(simInfo);
  return answer([&] { return group_simulate_end(simInfo); });
}
