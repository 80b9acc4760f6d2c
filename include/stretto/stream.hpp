#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "stretto/export.hpp"

// Time, in CUDA's vocabulary: a Stream is a queue that runs its tasks in order, an Event marks a place in a stream, a Work
// is one task that was put there. On the host a stream is a worker thread; on a GPU it is a CUDA stream, and a task is a
// function that puts kernels and copies there: it runs in enqueue() itself, and is done when the GPU has done them. All
// three are handles: copies mean the same object, and every function may be called from any thread; only one Event is not
// recorded by two threads at once.
namespace stretto {

enum class Device : std::uint8_t { cpu, cuda };

// When a task was put into its stream, began and ended, in seconds of one monotonic clock (zero: not yet), and for how long
// threads that are no stream's were blocked in waiting for it: the part of the task that was not hidden. On an inline stream
// that is all of it. On a GPU it is computation() (stretto/device.hpp) that waits, and in which nothing is hidden.
struct WorkTimes {
  double enqueued = 0, started = 0, done = 0, waited = 0;
};
STRETTO_API double now_seconds();

// One task of a stream. The task, and with it all that it captured (its buffers), lives until it is done.
class STRETTO_API Work {
 public:
  Work() = default;       // done, and never failed
  static Work reserve();  // of a task that Stream::enqueue will get

  // Both throw Error(invalid_argument) for a reserved work whose task is not in a stream yet: nobody might ever put it
  // there. This one blocks until the task is done, and throws what the task threw, every time it is called.
  void wait() const;
  // Blocks until the task has begun (or failed without beginning).
  void wait_started() const;
  bool done() const;  // never blocks, never throws
  WorkTimes times() const;

  struct STRETTO_HIDDEN State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // The library's own: what had no task was done in the calling thread, and nothing had to be allocated for it; the times
  // are ticks of a clock that only it reads.
  void was_done(std::uint64_t started_ticks, std::uint64_t done_ticks) {
    started_ticks_ = started_ticks;
    done_ticks_ = done_ticks;
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
  std::uint64_t started_ticks_ = 0, done_ticks_ = 0;
};

class STRETTO_API Event;

// Between streams of one rank whose operations want the same links: what the next computation waits for goes first, what
// nobody waits for until the end of the step goes last. CUDA has the same of kernels; for messages Jayarajan et al. 2019
// (P3) and Peng et al. 2019 (ByteScheduler).
//
// On the host, while an operation of a more urgent stream moves bytes, those of less urgent ones hand no further pieces (32
// to 256 KiB) to their links; what is with the network already goes on, and so do receives. A small gather so overtakes a
// large sum that began before it. Between hosts a background stream gives the network no more than 1 MiB a link at a time,
// for there nothing overtakes. Who finds nothing to move for 20 ms holds nobody, and nobody is held for more than 50 ms
// without handing over a piece: no order of calls deadlocks. No result changes by it.
//
// Operations of one communicator still follow each other in the order of the calls: what is to overtake needs a
// communicator of its own (Communicator::duplicate). A group of operations goes with the most urgent of its streams.
// Held are messages, those within a host as well. Plans in which ranks of a host read and write each other's memory (packet,
// staged, pull, push) hand nothing to a link, and are not.
enum class Priority : std::uint8_t { background, normal, urgent };
STRETTO_API const char* name(Priority priority);

class STRETTO_API Stream {
 public:
  // Of this thread's device (OnDevice, stretto/device.hpp): starts a worker thread, or makes a CUDA stream. The name appears
  // in the ledger, in debuggers and in traces.
  explicit Stream(std::string name, Priority priority = Priority::normal);
  Stream(std::string name, Priority priority, Device device);
  // A cudaStream_t of the program's own (null: CUDA's legacy default stream), of the GPU that this process uses: tasks go
  // there between what the program puts there. The program keeps it until after the last copy of this handle, all works of
  // it and what they made (tensors) are gone, and does not capture it while tasks are put there. Returns at once: what is in
  // it goes on.
  static Stream of_cuda(void* cuda_stream, std::string name);
  // Runs every task at once in the calling thread; errors are thrown from enqueue itself. Costs nothing to make.
  static Stream inline_() { return Stream(std::shared_ptr<Queue>()); }

  // Puts a task behind those already there and returns. A task that throws ends its stream: later tasks do not run and
  // fail with the same exception, as do streams that wait for them.
  Work enqueue(std::function<void()> task) const;
  // The same for a Work that was handed out before its task was known. Waiting for it earlier throws, in
  // Stream::wait as well.
  void enqueue(std::function<void()> task, const Work& reserved) const;

  // What is enqueued from now on begins only after the work, or the place that the event last recorded, is done. Does not
  // block the caller (except on an inline stream, and where a GPU's stream waits for a task of the host, which is looked for
  // at once). Waiting for an event that was never recorded is no wait, as in CUDA; a reserved work whose task is not in a
  // stream yet throws at this call.
  void wait(const Work& work) const;
  void wait(const Event& event) const;
  // For everything that is in the other stream now; nothing where that is inline, or this very stream.
  void wait(const Stream& other) const;
  // Marks the place behind everything enqueued so far.
  void record(Event& event) const;
  // Blocks until everything enqueued so far is done; throws if the stream has failed.
  void synchronize() const;

  const std::string& name() const;
  Priority priority() const;  // of an inline stream: urgent, for its caller waits
  bool is_inline() const { return queue_ == nullptr; }
  Device device() const;
  bool operator==(const Stream&) const = default;  // the same queue

  // The library's own.
  class STRETTO_HIDDEN Queue;
  explicit Stream(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
  const std::shared_ptr<Queue>& queue() const { return queue_; }

 private:
  bool is_gpu_computation() const;

  // None for the inline stream. The last handle to go lets the queue run empty, then joins its thread; an error that nobody
  // waited for is logged.
  std::shared_ptr<Queue> queue_;
};

// What this thread is to do while it waits for other ranks on an inline stream: function is called again and again, at least
// once a millisecond, as soon as a wait is no longer one of nanoseconds. For a thread that has another communication library
// to keep going: what the other ranks still wait for there may be what keeps them from coming here. It must be short, throw
// nothing and call nothing of Stretto's. nullptr, as in the beginning: nothing.
STRETTO_API void while_waiting(void (*function)());

class STRETTO_API Event {
 public:
  // Both speak of the latest record; an event that was never recorded counts as reached.
  bool reached() const;
  void wait() const;  // throws if the stream failed before it

 private:
  friend class Stream;
  Work place_;
};

}  // namespace stretto
