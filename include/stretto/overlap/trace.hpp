#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/communicator.hpp"

namespace stretto {

struct TraceNotes;

// A trace of all ranks on one clock. It contains the kernels of the computing thread, the operations of every stream
// (from the ledger), steps and named parts, and arrows from senders to receivers. write() writes the trace as Chrome's
// trace-event JSON (Google's "Trace Event Format"). Perfetto (ui.perfetto.dev) draws it as:
//
//   process      a rank of the job
//   thread 0     the computing thread: kernels (category "compute"), and operations on inline streams ("communication")
//   thread 1..   one per stream, in the order of first use. Streams of one name share a thread if no operations overlap
//   thread "steps"  the spans of step() and part() (categories "step" and "part")
//
// The arguments of an operation are bytes (sent), bytes_between_nodes, count, dtype (or the quantized format),
// algorithm, group, group_size, stream, tag, and waited_us, the time for which the operation blocked computing threads.
// Times are in microseconds since the earliest event. Arrows connect the n-th collective of a communicator on all its
// ranks, and the n-th message from one rank to another. Ranks count from the construction of the Trace, so all ranks
// must construct it at the same place in their order of operations.
//
// Clock: ranks of one host read the same monotonic clock. A rank on another host measures its offset to rank 0's clock
// in the constructor and in write(), each time from the shortest of 16 round trips (Cristian 1989), and interpolates
// linearly between the two. The error is at most half of that round trip; the file contains it
// (otherData.clock_error_us).
//
// On a GPU, the times of kernels and spans come from CUDA events before and after each. Work that becomes part of a CUDA
// graph is not recorded.
//
// Cost: a kernel costs two reads of the clock and 24 bytes; on a GPU, four events. An operation costs nothing when it
// runs; step() later copies finished operations from the ledger, about 300 bytes each. Without a Trace object, nothing
// is recorded. The start of an immediate operation (ledger.hpp) is measured after its first word was sent, so arrows
// from the operation may begin late.
class STRETTO_API Trace {
 public:
  // Collective over all ranks of the job. The Trace records the kernels of the calling thread from now on, and only that
  // thread may use and destroy it. Throws Error(invalid_argument) if the thread already has a Trace.
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
  // Begins a span named "step NUMBER". Call step() at least every STRETTO_LEDGER operations: the trace loses operations
  // that the ledger drops before the next step(). write() reports such a loss, and then leaves out all arrows.
  [[nodiscard]] Span step(std::int64_t number);
  // Begins a span with a name such as "forward", inside a step or outside.
  [[nodiscard]] Span part(std::string name);

  // Rank 0 writes the records of all ranks, since the construction of the Trace, to `path`. Collective over all ranks of
  // the job; it may be called several times. Operations that are not done are left out. The file is an
  // OutputFile (output_file.hpp). If rank 0 cannot write the file, it throws Error(io) and leaves no file. Rank 0 holds the
  // text of one other rank at a time.
  void write(const std::string& path);
  // Throws Error(io) if write() could not create a file at `path`. Call this function before a long training run. Not
  // collective.
  static void check_writable(const std::string& path);

 private:
  void harvest();
  std::unique_ptr<TraceNotes> notes_;
};

}  // namespace stretto
