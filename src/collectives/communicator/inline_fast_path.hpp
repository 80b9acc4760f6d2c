#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/communicator/call_shapes.hpp"
#include "collectives/communicator/turns.hpp"
#include "collectives/execution/shared_memory.hpp"
#include "collectives/ledger/fast_path_log.hpp"
#include "stretto/ledger.hpp"
#include "transport/links.hpp"

namespace stretto {

// Runs calls on inline streams between ranks of one host in the calling thread: such calls take less time than the
// bookkeeping of a task. An operation that goes over mapped memory and needs no buffers of its own runs without an
// allocation, a lock or an atomic read-modify-write. run() returns false for calls that it does not serve; the caller then
// enqueues them as tasks.
class InlineFastPath {
 public:
  // All arguments belong to one communicator, and must outlive this object.
  InlineFastPath(Links& links, SharedMemory& shared, Turns& turns, FastPathLog& log, Ledger& ledger)
      : links_(links), shared_(shared), turns_(turns), log_(log), ledger_(ledger) {}

  // True: the operation is done, and `work` is its work. Throws what the operation throws.
  bool run(const Call& call, const OperationOptions& options, const CallSite& site, Work& work);
  bool run(const Operation::State& prepared, Work& work);

  // Serves calls of this shape from now on without checking or planning them again.
  void remember(const Operation::State& prepared);

 private:
  static bool can_serve(const Call& call, const OperationOptions& options);
  bool run_barrier(const OperationOptions& options, const CallSite& site, Work& work);
  void perform(const PlannedCall& planned, const Call& call, double factor, const CallLabel& label, Work& work);
  void note_failure(const Record& what, const CallLabel& label, std::uint64_t begin);  // begin: ticks, or 0

  Links& links_;
  SharedMemory& shared_;
  Turns& turns_;
  FastPathLog& log_;
  Ledger& ledger_;
  CallShapes shapes_;
  CallShape barrier_;  // a barrier's caller has no buffers: these are the library's
};

}  // namespace stretto
