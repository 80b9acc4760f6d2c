#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "stretto/export.hpp"

// Streams, events and works, in CUDA's sense: a Stream is a queue that runs its tasks in order, an Event marks a place in
// a stream, a Work is one task in a stream. On the host a stream is a worker thread, which calls the tasks. On a GPU it
// is a CUDA stream: enqueue() itself calls the task, which puts kernels and copies into the stream, and the task is done
// when the GPU has done these. All three classes are handles: copies refer to the same object. Any thread may call any
// function, but two threads must not record the same Event at the same time.
namespace stretto {

enum class Device : std::uint8_t { cpu, cuda };

// Times of a task in seconds of one monotonic clock: when it was put into its stream, began, and ended; 0: not yet.
// `waited` is how long it was not hidden, in seconds. On the host, that is how long threads other than streams' workers
// were blocked in waiting for it; on an inline stream, the whole task. On a GPU, it is how long computation()
// (stretto/device.hpp) stood still for it; for a task in computation() itself, the whole task.
struct WorkTimes {
  double enqueued = 0, started = 0, done = 0, waited = 0;
};
STRETTO_API double now_seconds();

// One task of a stream. The task and everything that it captured, such as its buffers, live until it is done.
class STRETTO_API Work {
 public:
  Work() = default;       // done, and never failed
  static Work reserve();  // for a task that Stream::enqueue() will get later

  // wait() and wait_started() throw Error(invalid_argument) for a reserved work whose task is not in a stream yet: the
  // wait might never end. wait() blocks until the task is done, and throws what the task threw, each time it is called.
  void wait() const;
  // Blocks until the task has begun, or has failed without beginning.
  void wait_started() const;
  bool done() const;  // never blocks, never throws
  WorkTimes times() const;

  // Internal: not part of the interface.
  struct STRETTO_HIDDEN State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Internal: marks a work that ran at once in the calling thread and needed no State. The times are in ticks of an
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

// The order in which streams of one rank get the links that they share. Give `urgent` to what the next computation waits
// for, and `background` to what is not needed before the end of the step. CUDA's stream priorities do the same for
// kernels; for messages see Jayarajan et al. 2019 (P3) and Peng et al. 2019 (ByteScheduler). Priorities change no result.
//
// On the host, while an operation of a more urgent stream moves bytes, operations of less urgent streams hand no further
// pieces (32 to 256 KiB) to their links. Pieces already handed over go on, and so do receives. So a small gather
// overtakes a large sum that began before it. Between hosts, where nothing overtakes inside the network, a background
// stream has at most 1 MiB per link in flight. No order of calls deadlocks: an operation that moves nothing for 20 ms
// stops holding others, and a held operation still sends a piece every 50 ms.
//
// Operations of one communicator still follow each other in the order of the calls. To overtake, an operation needs
// another communicator (Communicator::duplicate). A group of operations has the priority of its most urgent stream.
// Messages can be held, also those within a host. Plans in which ranks of a host read and write each other's memory
// (packet, staged, pull, push) are never held: they use no links.
enum class Priority : std::uint8_t { background, normal, urgent };
STRETTO_API const char* name(Priority priority);

// An in-order queue of tasks. The destructor of the last handle blocks until the tasks are done. An error that no wait
// has reported is then logged.
class STRETTO_API Stream {
 public:
  // Starts a worker thread, or makes a CUDA stream, on this thread's device (OnDevice, stretto/device.hpp). The name
  // appears in the ledger, in debuggers and in traces.
  explicit Stream(std::string name, Priority priority = Priority::normal);
  Stream(std::string name, Priority priority, Device device);
  // Wraps the program's own cudaStream_t of the GPU that this process uses (null: CUDA's legacy default stream). Tasks
  // run there in order with what the program puts there. The CUDA stream must outlive all copies of this handle, all its
  // works, and all tensors made in it, and must not be captured while tasks are put there. Never blocks.
  static Stream of_cuda(void* cuda_stream, std::string name);
  // Runs every task at once in the calling thread; enqueue() throws what the task throws. Costs nothing to make.
  static Stream inline_() { return Stream(std::shared_ptr<Queue>()); }

  // Puts a task behind the earlier ones and returns. A task that throws ends its stream: later tasks do not run and fail
  // with the same exception, as do streams that wait for them.
  Work enqueue(std::function<void()> task) const;
  // Like the above, for a Work that was reserved before its task was known. Waiting for that Work before this call
  // throws, also in Stream::wait().
  void enqueue(std::function<void()> task, const Work& reserved) const;

  // Tasks enqueued from now on begin only after the work, or the latest record of the event, is done. Does not block
  // the caller, with two exceptions: on an inline stream, and if a GPU stream waits for a host task. Waiting for an
  // event that was never recorded has no effect, as in CUDA. A reserved work whose task is not in a stream yet throws
  // at this call.
  void wait(const Work& work) const;
  void wait(const Event& event) const;
  // Waits for everything that is in the other stream now. No effect if that is inline, or this same stream.
  void wait(const Stream& other) const;
  // Marks the place behind everything enqueued so far.
  void record(Event& event) const;
  // Blocks until everything enqueued so far is done; throws if the stream has failed.
  void synchronize() const;

  const std::string& name() const;
  Priority priority() const;  // an inline stream is urgent, since its caller waits
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

// Sets a function that this thread calls while it waits for other ranks on an inline stream: again and again, at least
// once a millisecond, as soon as a wait takes longer than nanoseconds. It is for a thread that must keep another
// communication library going, since a rank that waits in that library cannot come here. The function must be short, and
// must neither throw nor call Stretto. nullptr, the initial value: no function.
STRETTO_API void while_waiting(void (*function)());

class STRETTO_API Event {
 public:
  // Both refer to the latest record. An event that was never recorded counts as reached.
  bool reached() const;
  void wait() const;  // throws if the stream failed before it

 private:
  friend class Stream;
  Work place_;
};

}  // namespace stretto
