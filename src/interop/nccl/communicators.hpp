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

// The communicators in which the door has a part. All others are NCCL's alone, and the door does not know them.
namespace stretto::nccl_door {

// One rank's end. The program's handle is NCCL's own where each rank has a GPU; where ranks share one, which NCCL refuses,
// it is the address of this, and every call is answered here.
struct Comm {
  // Where NCCL keeps a number by which it knows its communicators: what gets there past the door is refused by NCCL.
  std::uint64_t no_communicator_of_nccls = 0x5374726574746f21;
  bool shared = false;
  strettoComm_t ranks = nullptr;
  int rank = 0;
  int size = 1;
  int device = 0;
  // A watchdog's thread may abort it.
  std::atomic<bool> open = true;  // until it is destroyed or aborted
  std::atomic<bool> finalized = false;

  // Of NCCL's own handles:
  Rules served;
  struct Reduction {
    std::optional<strettoRedOp_t> ours;
    std::string why_not;
  };
  std::map<int, Reduction> reductions;  // by NCCL's number: the same factor for either library
  // The two libraries know nothing of each other: what one puts into a stream waits for what the other put there last.
  enum class Last { nobody, nccl, stretto };
  Last last = Last::nobody;
  cudaEvent_t place = nullptr;  // behind it

  Comm() = default;
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
};
using CommPointer = std::shared_ptr<Comm>;

// The handle of a shared one; those of ended ones stay known, so that they are refused.
ncclComm_t add_shared(const CommPointer& comm);
void add_served(ncclComm_t handle, const CommPointer& comm);
// Null: NCCL's alone.
CommPointer find(ncclComm_t handle);
// From now on the handle is NCCL's alone; or, if it is shared, nobody's.
void forget(ncclComm_t handle);
// Throws Refusal for one that has ended.
void require_open(const Comm& comm, const char* function);

// Destroys it beside the program: its end waits for those of the other ranks, and NCCL's callers may end one rank after the
// other in one thread. The program's own end waits for that a few seconds.
void end_in_background(strettoComm_t ranks);
void wait_for_ends();  // all of them; for tests

// The program's stream, as the C interface takes it; kept, since a program has few and uses them again.
strettoStream_t stream_of(cudaStream_t stream);
// After an error such a stream takes nothing more: the next call gets a new one.
void forget(cudaStream_t stream);
void forget_streams();  // for tests, whose GPUs end before the program

}  // namespace stretto::nccl_door
