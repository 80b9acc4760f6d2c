#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/communicator.hpp"

namespace stretto {

struct TraceNotes;

// What every rank did when, on one clock: kernels of the computing thread, operations of every stream from the ledger, steps
// and named parts, and between operations arrows from who sent to who received. write() makes Chrome's trace-event JSON of
// it (Google's "Trace Event Format"), which Perfetto (ui.perfetto.dev) opens and perf/timeline draws:
//
//   process      a rank of the job
//   thread 0     the computing thread: kernels (category "compute"), and operations on inline streams ("communication")
//   thread 1..   a stream each, in the order of first use; streams of one name share one unless their operations overlap
//   thread "steps"  the spans of step() and part() (categories "step" and "part")
//
// Operations have as arguments: bytes (sent), bytes_between_nodes, count, dtype (or the quantized format), algorithm, group,
// group_size, stream, tag and waited_us, for how long computing threads were blocked by them. Times are microseconds from
// the earliest of all. Which rank's n-th operation of a communicator goes with which, the ranks know by counting: all make
// the trace in the same place of their order of operations.
//
// One clock: ranks of one host read the same monotonic clock. For the others the difference to rank 0's is taken from the
// shortest of 16 round trips, in the beginning and in write(), and a line between the two (Cristian 1989); it is wrong by
// half that round trip at most, and the file says by how much (otherData.clock_error_us).
//
// On a GPU, kernels and spans have the times at which it came to them, told by events before and behind each; what becomes
// part of a graph is not noted.
//
// It costs a kernel two looks at the clock and 24 bytes (on a GPU four events), an operation nothing until a step begins,
// which copies what has ended from the ledger, about 300 bytes an operation; without a trace, nothing. Operations that ran
// at once have noted their beginning when their first word was out already: an arrow from one may begin late.
class STRETTO_API Trace {
 public:
  // Collective over all ranks of the job. Kernels of the calling thread are noted from now on; it is the thread that uses
  // this object and destroys it, and there is one trace a thread: throws Error(invalid_argument) for a second.
  explicit Trace(const Communicator& world);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // From its making to its end, on the track of steps. The trace must be there longer.
  class STRETTO_API Span {
   public:
    Span() = default;  // nothing
    Span(Span&& other) noexcept;
    ~Span();

   private:
    friend class Trace;
    Span(TraceNotes* notes, std::size_t index) : notes_(notes), index_(index) {}
    TraceNotes* notes_ = nullptr;
    std::size_t index_ = 0;
  };
  // "step 12". Between two of these at most STRETTO_LEDGER operations may lie: what the ledger has dropped by then is lost,
  // which write() says, and leaves all arrows out.
  [[nodiscard]] Span step(std::int64_t number);
  // Of a step or beside it: "forward".
  [[nodiscard]] Span part(std::string name);

  // Collective: rank 0 writes what all have noted since the beginning; can be called again later. Operations that are not
  // done are left out. The file appears when it is complete (until then it is PATH.new). Where it cannot be written, rank 0
  // throws Error(io), and nothing is left of it. Rank 0 holds one other rank's text at a time.
  void write(const std::string& path);
  // Before hours of training: throws Error(io) where write() could not make that file. Not collective.
  static void check_writable(const std::string& path);

 private:
  void harvest();
  std::unique_ptr<TraceNotes> notes_;
};

}  // namespace stretto
