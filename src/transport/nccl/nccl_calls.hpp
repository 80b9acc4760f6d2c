#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "device/gpu.hpp"
#include "stretto/dtype.hpp"

namespace stretto {

using NcclComm = struct NcclCommHandle*;
using NcclId = std::array<std::byte, 128>;

// The functions of NCCL that the library calls: all work on a GPU goes through this table and Gpu (device/gpu.hpp).
// nccl_library.cpp fills it from libnccl; the tests fill it with threads (tests/stand_in/), and hold callers to NCCL's
// rules. Each function throws Error(unavailable) with NCCL's own message.
//
// Only one thread at a time may call anything with one communicator, including abort() and failure(). No call blocks except
// join(). An operation may have to wait for other ranks, for example when ranks connect in their first exchange; it then
// continues asynchronously until settled() returns true.
class NcclCalls {
 public:
  virtual ~NcclCalls() = default;
  virtual int version() = 0;  // of the NCCL that this process has loaded: 22800 is 2.28.0
  virtual NcclId new_id() = 0;
  // Collective; blocks until all members have come, or throws Error(timeout) after STRETTO_TIMEOUT seconds. Meanwhile it
  // calls check(), which may throw, now and then.
  virtual NcclComm join(int size, const NcclId& id, int rank, const std::function<void()>& check) = 0;
  // Whether the last operation has been put into its streams (or is finished). Until it is true, nothing else may be put
  // into these streams, and nothing may be called but this, failure() and abort(). Throws if it will never become true.
  virtual bool settled(NcclComm comm) = 0;
  virtual void finish(NcclComm comm) = 0;          // collective: ends the operations in flight; only destroy() may follow
  virtual void destroy(NcclComm comm) = 0;         // once finish() is settled
  virtual void abort(NcclComm comm) = 0;           // destroys the communicator, even with operations in flight
  virtual std::string failure(NcclComm comm) = 0;  // an asynchronous error; empty: none

  // Between group_start() and group_end() sends and receives are only recorded; group_end() starts them together. Nothing
  // else may be put into their streams meanwhile. group_end() ends the group even if it throws.
  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(const void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) = 0;
  virtual void recv(void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) = 0;

  // count: as NCCL counts, of the whole vector for all_reduce, reduce and broadcast, and of one rank's share for the others.
  // op: any but premul_sum; avg multiplies floats by 1/size first, and divides sums of integers.
  virtual void all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                          GpuStream stream) = 0;
  virtual void reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                              GpuStream stream) = 0;
  virtual void all_gather(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                          GpuStream stream) = 0;
  virtual void all_to_all(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                          GpuStream stream) = 0;
  virtual void broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root, NcclComm comm,
                         GpuStream stream) = 0;
  virtual void reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root, NcclComm comm,
                      GpuStream stream) = 0;
};

// libnccl; null if this build has none.
NcclCalls* nccl();
// For tests: puts another table in its place; null: the real one again.
void use_nccl(NcclCalls* other);

// A communicator that the program has made with NCCL by itself (an ncclComm_t), with its own rank, size and device. The
// program keeps owning it: Stretto neither destroys nor aborts it. adopt_nccl_comm() throws Error(unavailable) if this build
// has no NCCL.
struct AdoptedNcclComm {
  NcclComm comm = nullptr;
  int rank = 0;
  int size = 1;
  int device = 0;  // as CUDA counts
};
AdoptedNcclComm adopt_nccl_comm(void* nccl_comm);

}  // namespace stretto
