#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/fail.hpp"
#include "core/forks.hpp"
#include "stretto/stream.hpp"

// The inside of a Stream and of a Work. Streams of the host are in stream.cpp, streams of a GPU in gpu_stream.cpp.
namespace stretto {

struct GpuStreamHandle;

// A wait inside a stream delays only that stream, so it does not count as waited time.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local bool on_worker_thread = false;

// The threads of the program, of all ranks in this process, that wait for a work now.
inline std::atomic<int> waiting_program_threads = 0;

// The work for which this thread waits now; null: none. Other threads may read it, also when this one has ended.
const std::shared_ptr<std::atomic<const Work::State*>>& work_awaited_by_this_thread();
class AwaitsWork {
 public:
  explicit AwaitsWork(const Work::State* work) : before_(work_awaited_by_this_thread()->exchange(work)) {}
  ~AwaitsWork() { *work_awaited_by_this_thread() = before_; }
  AwaitsWork(const AwaitsWork&) = delete;
  AwaitsWork& operator=(const AwaitsWork&) = delete;

 private:
  const Work::State* before_;
};

// The beginning and the end of a task in a GPU's stream.
class GpuMarks {
 public:
  virtual ~GpuMarks() = default;
  virtual bool started() = 0;
  virtual bool done() = 0;
  virtual void wait_started() = 0;
  virtual void wait_done() = 0;
  virtual WorkTimes times(double enqueued) = 0;  // once done
};

struct Work::State {
  std::function<void()> task;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  WorkTimes times;               // under the mutex
  std::exception_ptr error;      // under the mutex until it is finished
  std::shared_ptr<State> cause;  // the earlier work, of this stream or another, whose error this one has taken over
  std::atomic<bool> error_seen = false;
  bool finished = false;
  bool skipped = false;  // a rehearsal has left the operation out; set before the task is put into a stream
  const int made_at = forks;
  // On a GPU, under the mutex: the first place in computation() after which computation() waits for this work; and whether
  // this work is in computation() itself, where its whole time is exposed.
  Work waited_from;
  bool in_computation = false;
  std::shared_ptr<GpuMarks>
      marks;  // under the mutex: set when the task has been put into a GPU's stream, null again when it is done
  // Also under the mutex: the earlier works of that stream, and of the streams that it waits for. Until the GPU has passed
  // them, it is unknown whether they succeed; if one fails, so does this work.
  std::vector<std::shared_ptr<State>> behind;

  void begin();
  // Destroys the task before the end becomes visible: waiters may then free what the task used. An error that fail_with()
  // has set before stays.
  void end(std::exception_ptr with);
  void run(const std::shared_ptr<State>& failed_before);
  // The task has been put into a GPU's stream, where it continues without the host.
  void go_on(std::shared_ptr<GpuMarks> at, std::vector<std::shared_ptr<State>> follows);
  // Whether the work has ended. If its GPU has passed it, this call ends it.
  bool settle();
  // Like settle(), but does not end the work: its task stays until settle(). A GPU that has failed counts as past
  // everything.
  bool is_past();
  void wait_until_past();  // returns at once if the work is in no stream yet

  // Throws if the task has not been enqueued: a wait for it might never end. Called under the mutex.
  void require_enqueued() const {
    require(times.enqueued > 0, "A work was waited for before it was put into a stream; end its group of operations first.");
  }
  void wait_until_ended();
  std::exception_ptr wait_for_end();  // marks the error as seen
  bool has_started();                 // never blocks
  bool is_being_put_in();             // not in a GPU's stream yet, and not ended
  // Records that `computation`, which is computation(), is about to wait for this work. Does nothing for tasks of the host.
  void note_wait(const Stream& computation);
  std::exception_ptr failure() const;
  // Fails a task that is in a GPU's stream, or about to be put there, and that cannot succeed any more: waiters get this
  // error. why: the work that failed first, if several fail for one reason; null: this work.
  void fail_with(std::exception_ptr with, const std::shared_ptr<State>& why);

 private:
  bool finish();
};

// Like handle_of, for a stream on a GPU. As long as the result is held, the GPU's stream exists, even without its Stream.
std::shared_ptr<GpuStreamHandle> kept_handle_of(const Stream& stream);

class Stream::Queue : public std::enable_shared_from_this<Stream::Queue> {
 public:
  Queue(std::string name, Priority priority) : name_(std::move(name)), priority_(priority) {}
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  virtual void push(const std::shared_ptr<Work::State>& work) = 0;
  // Tasks that are pushed after this call begin after the work has ended.
  virtual void wait(const Work& work) = 0;
  virtual Device device() const = 0;

  const std::string& name() const { return name_; }
  Priority priority() const { return priority_; }

 protected:
  // Logs, at the end of the stream, an error that nobody has waited for.
  void report(const std::shared_ptr<Work::State>& failed) const;

 private:
  std::string name_;
  Priority priority_;
};

}  // namespace stretto
