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

// What the library calls of NCCL: with Gpu (device/gpu.hpp) the narrow table through which everything on a GPU goes.
// nccl_library.cpp fills it from libnccl; the tests fill it with threads (tests/stand_in/), and hold callers to NCCL's
// rules. Each throws Error(unavailable) with what NCCL said.
//
// Of one communicator, one thread at a time calls anything, abort() and failure() included. No call blocks but join(): what
// has to wait for other ranks, such as ranks that connect when they first exchange anything, goes on by itself, and
// settled() tells when it is over.
class NcclCalls {
 public:
  virtual ~NcclCalls() = default;
  virtual int version() = 0;  // of the one that was loaded where the program runs: 22800 is 2.28.0
  virtual NcclId new_id() = 0;
  // Collective; blocks until all have come, or throws Error(timeout) after STRETTO_TIMEOUT seconds. Meanwhile check(), which
  // may throw, is called now and then.
  virtual NcclComm join(int size, const NcclId& id, int rank, const std::function<void()>& check) = 0;
  // Whether what was called last has been put into its streams (or is finished). Until it is true, nothing else may be put
  // into these, nor anything be called but this, failure() and abort(). Throws when it will not come to that.
  virtual bool settled(NcclComm comm) = 0;
  virtual void finish(NcclComm comm) = 0;          // collective: what is under way ends; the last but destroy()
  virtual void destroy(NcclComm comm) = 0;         // once that is settled
  virtual void abort(NcclComm comm) = 0;           // the communicator goes, whatever is under way
  virtual std::string failure(NcclComm comm) = 0;  // asynchronous; empty: none

  // Between the two, sends and receives are only noted; at the end they go together. Nothing else may be put into their
  // streams meanwhile. group_end() ends the group even when it throws.
  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(const void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) = 0;
  virtual void recv(void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) = 0;

  // count as NCCL counts: of the whole vector for all_reduce, reduce and broadcast; of one rank's share for the others. All
  // operations but premul_sum; avg multiplies floats by 1/size first, and divides sums of integers.
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

// libnccl; null where this build has none.
NcclCalls* nccl();
// For tests: another one takes its place; null: the real one again.
void use_nccl(NcclCalls* other);

// A communicator that the program has made with NCCL by itself (an ncclComm_t), as it says of itself. It stays the
// program's: whoever wraps it neither destroys nor aborts it. Throws Error(unavailable) where this build has no NCCL.
struct AdoptedNcclComm {
  NcclComm comm = nullptr;
  int rank = 0;
  int size = 1;
  int device = 0;  // as CUDA counts
};
AdoptedNcclComm adopt_nccl_comm(void* nccl_comm);

}  // namespace stretto
