#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/communicator.hpp"

namespace stretto {

struct TraceNotes;

// A trace of all ranks on one clock: kernels of the computing thread, operations of every stream from the ledger, steps
// and named parts, and arrows from senders to receivers. write() makes Chrome's trace-event JSON of it (Google's "Trace
// Event Format"). Perfetto (ui.perfetto.dev) draws it:
//
//   process      a rank of the job
//   thread 0     the computing thread: kernels (category "compute"), and operations on inline streams ("communication")
//   thread 1..   one per stream, in the order of first use; streams with the same name share one unless operations overlap
//   thread "steps"  the spans of step() and part() (categories "step" and "part")
//
// Arguments of an operation: bytes (sent), bytes_between_nodes, count, dtype (or the quantized format), algorithm,
// group, group_size, stream, tag, and waited_us, the time for which computing threads were blocked by it. Times are in
// microseconds since the earliest event. Arrows connect the n-th collective of a communicator on all its ranks, and the
// n-th message from one rank to another. For that count, all ranks must make the trace at the same place in their order
// of operations.
//
// Clock: ranks of one host read the same monotonic clock. On other hosts, the offset to rank 0's clock is taken from
// the shortest of 16 round trips, in the constructor and in write(), and interpolated linearly (Cristian 1989). The
// error is at most half that round trip; the file states it (otherData.clock_error_us).
//
// On a GPU, kernels and spans have the GPU's times, from events before and after each. Work that becomes part of a
// graph is not recorded.
//
// Cost: a kernel costs two looks at the clock and 24 bytes; on a GPU, four events. An operation costs nothing when it
// runs. step() copies finished operations from the ledger, about 300 bytes each. Without a trace nothing is recorded.
// The start of an operation that ran at once is noted after its first word was sent, so arrows from it may begin late.
class STRETTO_API Trace {
 public:
  // Collective over all ranks of the job. Records kernels of the calling thread from now on. Only that thread may use
  // and destroy the object. Throws Error(invalid_argument) if the thread has a trace already.
  explicit Trace(const Communicator& world);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // An interval on the "steps" track, from its construction to its destruction. The Trace must outlive it.
  class STRETTO_API Span {
   public:
    Span() = default;  // records nothing
    Span(Span&& other) noexcept;
    ~Span();

   private:
    friend class Trace;
    Span(TraceNotes* notes, std::size_t index) : notes_(notes), index_(index) {}
    TraceNotes* notes_ = nullptr;
    std::size_t index_ = 0;
  };
  // A span "step 12". Between two calls at most STRETTO_LEDGER operations may be made: the trace loses operations that
  // the ledger has dropped by then. write() then says so, and leaves out all arrows.
  [[nodiscard]] Span step(std::int64_t number);
  // A span with a name such as "forward", inside a step or not.
  [[nodiscard]] Span part(std::string name);

  // Writes to `path`, on rank 0, what all ranks have recorded since the beginning. Collective. May be called again
  // later. Operations that are not done are left out. The file appears when it is complete; until then it is PATH.new.
  // If it cannot be written, rank 0 throws Error(io) and leaves no file. Rank 0 holds one other rank's text at a time.
  void write(const std::string& path);
  // Throws Error(io) if write() could not make that file. To be called before hours of training. Not collective.
  static void check_writable(const std::string& path);

 private:
  void harvest();
  std::unique_ptr<TraceNotes> notes_;
};

}  // namespace stretto
