#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "interop/nccl/libraries/cuda_calls.hpp"
#include "interop/nccl/libraries/real_nccl.hpp"
#include "interop/nccl/serving.hpp"
#include "stretto/stretto.h"

// The communicators in which the door takes part. All others are NCCL's alone, and the door does not know them.
namespace stretto::nccl_door {

// One rank of such a communicator. If each rank has its own GPU, the program's handle is NCCL's own. If ranks share a GPU,
// which NCCL refuses, the handle is the address of this object, and the door answers every call.
struct Comm {
  // NCCL keeps a magic number at this place of its communicators. This other number makes NCCL refuse a shared handle that a
  // program passes to it directly.
  std::uint64_t no_communicator_of_nccls = 0x5374726574746f21;
  bool shared = false;
  strettoComm_t ranks = nullptr;
  int rank = 0;
  int size = 1;
  int device = 0;
  // Atomic, because a watchdog thread may abort the communicator.
  std::atomic<bool> open = true;  // until destroyed or aborted
  std::atomic<bool> finalized = false;

  // The members below serve NCCL's own handles only.
  Rules served;
  struct Reduction {
    std::optional<strettoRedOp_t> ours;
    std::string why_not;
  };
  std::map<int, Reduction> reductions;  // by NCCL's number; both libraries have the same factor
  // Neither library knows of the other's work. Each call of one library waits for the last call of the other.
  enum class Last { nobody, nccl, stretto };
  Last last = Last::nobody;
  cudaEvent_t place = nullptr;  // recorded after that last call

  Comm() = default;
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
};
using CommPointer = std::shared_ptr<Comm>;

// Returns the handle of a shared communicator. The handle stays known after the communicator ends, so that later calls are
// refused.
ncclComm_t add_shared(const CommPointer& comm);
void add_served(ncclComm_t handle, const CommPointer& comm);
// Returns null for a communicator that is NCCL's alone.
CommPointer find(ncclComm_t handle);
// Ends the door's part. Afterwards the handle is NCCL's alone; a handle of a shared communicator is refused.
void forget(ncclComm_t handle);
// Throws Refusal for a communicator that was destroyed or aborted.
void require_open(const Comm& comm, const char* function);

// Destroys `ranks` in a background thread. Destroying blocks until the other ranks destroy theirs, and programs written for
// NCCL may destroy their ranks one after the other in one thread. At exit the process waits a few seconds for these threads.
void end_in_background(strettoComm_t ranks);
void wait_for_ends();  // blocks until all of them have ended; for tests

// Returns the C interface's handle of a CUDA stream. Handles are kept, since a program has few streams and uses them again.
strettoStream_t stream_of(cudaStream_t stream);
// A handle accepts no more operations after an error. The next call on the stream then gets a new handle.
void forget(cudaStream_t stream);
void forget_streams();  // for tests, which destroy their GPUs before the process ends

}  // namespace stretto::nccl_door
