// The operations of the C interface: each is a stretto::Call.
#include <cstdint>

#include "interop/c/group.hpp"
#include "interop/c/reduction.hpp"

namespace stretto::c {
namespace {

struct Asked {
  Collective collective;
  const void* input;
  void* output;
  std::size_t count;
  strettoDataType_t datatype;
  strettoRedOp_t op = strettoSum;
  int root = 0;
};

// NCCL lets callers leave some arguments undefined on ranks other than the root; such arguments are never read.
Call call_of(const Asked& asked, int rank) {
  const bool from_root = asked.collective == Collective::broadcast || asked.collective == Collective::scatter;
  const bool to_root = asked.collective == Collective::reduce || asked.collective == Collective::gather;
  const DType dtype = dtype_of_c(asked.datatype);
  require(asked.count <= static_cast<std::size_t>(INT64_MAX) / size_of(dtype), "{} of {} elements is beyond any memory.",
          name(asked.collective), asked.count);
  Call call;
  call.collective = asked.collective;
  call.input = from_root && rank != asked.root ? nullptr : asked.input;
  call.output = to_root && rank != asked.root ? nullptr : asked.output;
  call.count = static_cast<std::int64_t>(asked.count);
  call.dtype = dtype;
  call.root = asked.root;
  return call;
}

strettoResult_t operate(const Asked& asked, strettoComm_t handle, strettoStream_t stream_handle) {
  return fail_group(answer_on(handle, [&](const std::shared_ptr<strettoComm>& comm) {
    require_open(*comm);
    const std::shared_ptr<strettoStream> stream = find_stream(stream_handle);
    Call call = call_of(asked, comm->ranks.rank());
    OperationOptions options;
    if (reduces(asked.collective)) {
      const Reduction reduction = reduction_of(*comm, asked.op, asked.datatype);
      call.op = reduction.op;
      options.factor = reduction.factor;
    }
    if (in_group()) return collect({comm, comm->ranks.prepare(call, options, {}), stream});
    watch(*comm, stream, comm->ranks.start(call, stream_of(stream), options, {}));
  }));
}

}  // namespace
}  // namespace stretto::c

using stretto::Collective;
using stretto::c::operate;

strettoResult_t strettoAllReduce(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                 strettoRedOp_t op, strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::all_reduce, sendbuff, recvbuff, count, datatype, op}, comm, stream);
}

strettoResult_t strettoReduce(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                              strettoRedOp_t op, int root, strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::reduce, sendbuff, recvbuff, count, datatype, op, root}, comm, stream);
}

strettoResult_t strettoReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, strettoDataType_t datatype,
                                     strettoRedOp_t op, strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op}, comm, stream);
}

strettoResult_t strettoAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, strettoDataType_t datatype,
                                 strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::all_gather, sendbuff, recvbuff, sendcount, datatype}, comm, stream);
}

strettoResult_t strettoBroadcast(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype, int root,
                                 strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::broadcast, sendbuff, recvbuff, count, datatype, strettoSum, root}, comm, stream);
}

strettoResult_t strettoBcast(void* buff, size_t count, strettoDataType_t datatype, int root, strettoComm_t comm,
                             strettoStream_t stream) {
  return operate({Collective::broadcast, buff, buff, count, datatype, strettoSum, root}, comm, stream);
}

strettoResult_t strettoAlltoAll(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::all_to_all, sendbuff, recvbuff, count, datatype}, comm, stream);
}

strettoResult_t strettoGather(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype, int root,
                              strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::gather, sendbuff, recvbuff, count, datatype, strettoSum, root}, comm, stream);
}

strettoResult_t strettoScatter(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype, int root,
                               strettoComm_t comm, strettoStream_t stream) {
  return operate({Collective::scatter, sendbuff, recvbuff, count, datatype, strettoSum, root}, comm, stream);
}

strettoResult_t strettoSend(const void* sendbuff, size_t count, strettoDataType_t datatype, int peer, strettoComm_t comm,
                            strettoStream_t stream) {
  return operate({Collective::send, sendbuff, nullptr, count, datatype, strettoSum, peer}, comm, stream);
}

strettoResult_t strettoRecv(void* recvbuff, size_t count, strettoDataType_t datatype, int peer, strettoComm_t comm,
                            strettoStream_t stream) {
  return operate({Collective::recv, nullptr, recvbuff, count, datatype, strettoSum, peer}, comm, stream);
}
