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
#include "stretto/stream.hpp"

// What a stream is made of, and what a task knows: of the host in stream.cpp, of a GPU in gpu_stream.cpp.
namespace stretto {

struct GpuStreamHandle;

// Waiting inside a stream holds nobody up but that stream, so it does not count as waited.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local bool on_worker_thread = false;

// Where a task that was put into a GPU's stream begins and ends there.
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
  // On a GPU, under the mutex: the first place in computation() behind which that waits for this one; and whether this one
  // is in computation() itself, where nothing is hidden.
  Work waited_from;
  bool in_computation = false;
  std::shared_ptr<GpuMarks>
      marks;  // under the mutex: set when the task has been put into a GPU's stream, gone when it is done
  // The same: what it comes behind in that stream and in those for which that waits. Nobody knows before the GPU has come
  // past them whether they end well; if not, this one does not either.
  std::vector<std::shared_ptr<State>> behind;

  void begin();
  // Drops the task before anybody can see the end: whoever waited may free what the task held. An error that fail_with() was
  // told before stays.
  void end(std::exception_ptr with);
  void run(const std::shared_ptr<State>& failed_before);
  // Has been put into a GPU's stream, where it goes on by itself.
  void go_on(std::shared_ptr<GpuMarks> at, std::vector<std::shared_ptr<State>> follows);
  // Whether it has ended; notices that a GPU has.
  bool settle();
  // The same without ending it: its task, and what that holds, stays for whoever settles it. A GPU that has failed is past
  // everything.
  bool is_past();
  void wait_until_past();  // returns at once for what is in no stream yet

  // Whoever waited for a task that nobody enqueues would wait forever. Under the mutex.
  void require_enqueued() const {
    require(times.enqueued > 0, "A work was waited for before it was put into a stream; end its group of operations first.");
  }
  void wait_until_ended();
  std::exception_ptr wait_for_end();  // and somebody has seen the error
  bool has_started();                 // never blocks
  bool is_being_put_in();             // or is still to be: neither in a stream nor ended
  // This stream, which is computation(), will wait for it; of a task of the host there is nothing to note.
  void note_wait(const Stream& computation);
  std::exception_ptr failure() const;
  // Of a task that goes on by itself, or is just being put there, and will come to no good end: whoever waits gets this
  // error. why: the work that failed first of several for one reason; null: this one.
  void fail_with(std::exception_ptr with, const std::shared_ptr<State>& why);

 private:
  bool finish();
};

// Of a stream on a GPU, like handle_of; while anybody has it, the GPU's stream is not destroyed, though its Stream may be.
std::shared_ptr<GpuStreamHandle> kept_handle_of(const Stream& stream);

class Stream::Queue : public std::enable_shared_from_this<Stream::Queue> {
 public:
  Queue(std::string name, Priority priority) : name_(std::move(name)), priority_(priority) {}
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  virtual void push(const std::shared_ptr<Work::State>& work) = 0;
  // What is pushed from now on begins after the work.
  virtual void wait(const Work& work) = 0;
  virtual Device device() const = 0;

  const std::string& name() const { return name_; }
  Priority priority() const { return priority_; }

 protected:
  // An error that nobody has waited for, at the end of the stream.
  void report(const std::shared_ptr<Work::State>& failed) const;

 private:
  std::string name_;
  Priority priority_;
};

}  // namespace stretto
