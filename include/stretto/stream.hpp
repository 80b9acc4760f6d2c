#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "stretto/export.hpp"

// Streams, events and works, as in CUDA and PyTorch. A Stream is a queue that runs its tasks in order, an Event marks a
// place in a stream, and a Work is one task in a stream. On the host, a stream has a worker thread, which calls the
// tasks. On a GPU, a stream is a CUDA stream: enqueue() itself calls the task, the task puts kernels and copies into the
// CUDA stream, and the task is done when the GPU has executed these. All three classes are handles: copies refer to the
// same object. Any thread may call any function, but two threads must not record the same Event at the same time.
namespace stretto {

enum class Device : std::uint8_t { cpu, cuda };

// The times of a task, in seconds. The task was put into its stream at `enqueued`, began at `started` and ended at
// `done`, on one monotonic clock; 0 means not yet. `waited` is the time for which the task was not hidden behind
// computation. On the host, it is the time for which threads other than streams' workers blocked in a wait for the task.
// On a GPU, it is the time for which computation() (stretto/device.hpp) was idle because it waited for the task. For a
// task on an inline stream or in computation() itself, `waited` is the duration of the task.
struct WorkTimes {
  double enqueued = 0, started = 0, done = 0, waited = 0;
};
STRETTO_API double now_seconds();

// One task of a stream. The stream keeps the task and everything that the task captured, such as tensors, until the task
// is done. Dropping a Work neither waits for its task nor ends it. The caller must still wait for the stream before it
// reads the results, and before it frees memory that it gave to a call as a pointer: otherwise it reads old values, or
// the stream's thread and other ranks access freed memory, which ends in a crash inside the library. Calls of
// communicators are therefore [[nodiscard]]: assign the Work to std::ignore where the stream or the group is waited for.
class STRETTO_API Work {
 public:
  Work() = default;       // a Work that is done and did not fail
  static Work reserve();  // for a task that will be passed to Stream::enqueue() later

  // Blocks until the task is done. If the task threw, every call of wait() throws the same exception. wait() and
  // wait_started() throw Error(invalid_argument) for a reserved Work whose task is not in a stream yet, because the wait
  // might never end.
  void wait() const;
  // Blocks until the task has begun, or has failed without beginning.
  void wait_started() const;
  bool done() const;  // never blocks, never throws
  WorkTimes times() const;

  // Internal: not part of the interface.
  struct STRETTO_HIDDEN State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Internal: marks a Work that ran at once in the calling thread and needed no State. The times are in ticks of an
  // internal clock.
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

// The priority of a stream: the order in which the streams of one rank use the links that they share. Use `urgent` for
// data that the next computation waits for, and `background` for data that is not needed before the end of the step.
// CUDA's stream priorities do the same for kernels; for messages see Jayarajan et al. 2019 (P3) and Peng et al. 2019
// (ByteScheduler). Priorities change no result.
//
// On the host, an operation sends its bytes in pieces of 32 to 256 KiB. While an operation of a more urgent stream moves
// bytes, the operations of less urgent streams are held: they hand no further pieces to their links. Pieces that are
// already in flight continue, and so do receives. A small all-gather can thus overtake a large all-reduce that began
// earlier. Messages cannot overtake each other inside the network, so a background stream has at most 1 MiB in flight
// per link between hosts. No order of calls deadlocks: an operation that moves nothing for 20 ms no longer holds others,
// and a held operation still sends a piece every 50 ms.
//
// Operations of one communicator always run in the order of the calls. To overtake, an operation needs another
// communicator (Communicator::duplicate). An OperationGroup has the priority of its most urgent stream. Operations that
// send messages can be held, even within a host. Operations in which ranks of a host read and write each other's memory
// (packet, staged, pull, push) are never held, because they use no links.
enum class Priority : std::uint8_t { background, normal, urgent };
STRETTO_API const char* name(Priority priority);

// An in-order queue of tasks. The destructor of the last handle blocks until the tasks are done, and logs an error that
// no wait has reported.
class STRETTO_API Stream {
 public:
  // Makes a stream on this thread's device (OnDevice, stretto/device.hpp): starts a worker thread on the host, or makes
  // a CUDA stream on a GPU. The name appears in the ledger, in debuggers and in traces.
  explicit Stream(std::string name, Priority priority = Priority::normal);
  Stream(std::string name, Priority priority, Device device);
  // Wraps the caller's cudaStream_t, of the GPU that this process uses (null: CUDA's legacy default stream). Tasks and
  // the caller's own work run in the order in which they are put into the CUDA stream. The CUDA stream must outlive all
  // copies of the returned handle, all its Works, and all tensors made while it was computation(). The caller must not
  // capture it into a CUDA graph while tasks are put into it. This function never blocks.
  static Stream of_cuda(void* cuda_stream, std::string name);
  // Returns the inline stream: enqueue() runs the task at once in the calling thread, and throws the exception that the
  // task throws. The call costs nothing.
  static Stream inline_() { return Stream(std::shared_ptr<Queue>()); }

  // Puts a task into the queue and returns. If a task throws, its stream has failed: later tasks do not run and fail
  // with the same exception. A stream that waits for a failed task fails with that exception, too.
  Work enqueue(std::function<void()> task) const;
  // Like the overload above, for a Work that was reserved before its task was known. Before this call, Work::wait() and
  // Stream::wait() throw for that Work.
  void enqueue(std::function<void()> task, const Work& reserved) const;

  // Tasks enqueued after this call begin only when the Work is done, or when the place that was last recorded in the
  // Event is reached. The call blocks the caller in two cases only: on an inline stream, and if a GPU stream waits for a
  // host task. To wait for an event that was never recorded has no effect, as in CUDA. Throws for a reserved Work whose
  // task is not in a stream yet.
  void wait(const Work& work) const;
  void wait(const Event& event) const;
  // Waits for all tasks that are in the other stream now. The call has no effect if the other stream is inline, or is
  // this stream.
  void wait(const Stream& other) const;
  // Makes the event mark the place after all tasks enqueued so far.
  void record(Event& event) const;
  // Blocks until all tasks enqueued so far are done. Throws if the stream has failed.
  void synchronize() const;

  const std::string& name() const;
  Priority priority() const;  // an inline stream is urgent, because its caller waits
  bool is_inline() const { return queue_ == nullptr; }
  Device device() const;
  bool operator==(const Stream&) const = default;  // whether both are handles of the same queue

  // Internal: not part of the interface.
  class STRETTO_HIDDEN Queue;
  explicit Stream(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
  const std::shared_ptr<Queue>& queue() const { return queue_; }

 private:
  bool is_gpu_computation() const;

  // Null for the inline stream.
  std::shared_ptr<Queue> queue_;
};

// A function that a thread calls repeatedly, at least every `seconds`, while it waits for other ranks on an inline stream.
// Waits of a few nanoseconds do not call it. Use it to drive the progress of another communication library: otherwise a peer
// that waits for this rank in that library would never join the operation of Stretto. Or use it to look for an interrupt;
// 0.05 s or more then leave waits as cheap as they are without. The function must be short, and must not call Stretto. If it
// throws, the operation fails with that exception on this rank, and its communicator is then unusable.
struct Meanwhile {
  void (*function)() = nullptr;  // null, the initial value: none
  double seconds = 1e-3;
};
// Sets this thread's function, and returns the one before.
STRETTO_API Meanwhile while_waiting(const Meanwhile& meanwhile);

class STRETTO_API Event {
 public:
  // Both functions refer to the place that was recorded last. An event that was never recorded counts as reached.
  bool reached() const;
  void wait() const;  // throws if the stream failed before that place

 private:
  friend class Stream;
  Work place_;
};

}  // namespace stretto
