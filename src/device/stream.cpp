#include "stretto/stream.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/prompt_thread.hpp"
#include "device/ticks.hpp"

namespace stretto {
namespace {

// Waiting inside a stream holds nobody up but that stream, so it does not count as waited.
thread_local bool on_worker_thread = false;

}  // namespace

double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Work::State {
  std::function<void()> task;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  WorkTimes times;  // under the mutex
  std::exception_ptr error;
  std::shared_ptr<State> cause;  // the earlier work of the stream whose error this one has taken over
  std::atomic<bool> error_seen = false;
  bool finished = false;

  // Who is woken needs the mutex: it is free by then.
  void begin() {
    {
      const std::lock_guard lock(mutex);
      times.started = now_seconds();
    }
    changed.notify_all();
  }

  // Drops the task before anybody can see the end: whoever waited may free what the task held.
  void end(std::exception_ptr with) {
    task = nullptr;
    {
      const std::lock_guard lock(mutex);
      error = std::move(with);
      times.done = now_seconds();
      finished = true;
    }
    changed.notify_all();
  }

  void run(const std::shared_ptr<State>& failed_before) {
    if (failed_before) {
      cause = failed_before;
      return end(cause->error);
    }
    begin();
    std::exception_ptr thrown;
    try {
      task();
    } catch (...) {
      thrown = std::current_exception();
    }
    end(thrown);
  }

  // Whoever waited for a task that nobody enqueues would wait forever. Under the mutex.
  void require_enqueued() const {
    require(times.enqueued > 0, "A work was waited for before it was put into a stream; end its group of operations first.");
  }

  std::exception_ptr wait_for_end() {
    std::unique_lock lock(mutex);
    require_enqueued();
    if (!finished) {
      const double from = now_seconds();
      changed.wait(lock, [&] { return finished; });
      if (!on_worker_thread) times.waited += now_seconds() - from;
    }
    error_seen = true;
    if (cause) cause->error_seen = true;
    return error;
  }
};

Work Work::reserve() { return Work(std::make_shared<State>()); }

void Work::wait() const {
  if (!state_) return;
  if (const std::exception_ptr error = state_->wait_for_end()) std::rethrow_exception(error);
}

void Work::wait_started() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->require_enqueued();
  state_->changed.wait(lock, [&] { return state_->finished || state_->times.started > 0; });
}

bool Work::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->finished;
}

WorkTimes Work::times() const {
  if (!state_) {
    const Span span = seconds_of(started_ticks_, done_ticks_);
    return {span.begin, span.begin, span.end, span.end - span.begin};
  }
  const std::lock_guard lock(state_->mutex);
  return state_->times;
}

// What the worker thread and the handles share; the thread keeps it alive to its own end.
struct Tasks {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Work::State>> waiting;
  bool closing = false;
  std::shared_ptr<Work::State> failed;  // the first that failed: everything behind it fails as well

  void work_through() {
    on_worker_thread = true;
    run_promptly();
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::shared_ptr<Work::State> work = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      work->run(failed);
      lock.lock();
      if (!failed && work->error) failed = work;
    }
  }
};

class Stream::Queue {
 public:
  Queue(std::string name, Priority priority)
      : name_(std::move(name)), priority_(priority), tasks_(std::make_shared<Tasks>()) {
    thread_ = std::thread([tasks = tasks_] { tasks->work_through(); });
    pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
  }

  ~Queue() {
    {
      const std::lock_guard lock(tasks_->mutex);
      tasks_->closing = true;
      tasks_->changed.notify_all();
    }
    // A task may own the last handle of its own stream; its thread cannot join itself.
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
      if (tasks_->failed && !tasks_->failed->error_seen) report(tasks_->failed->error);
    }
  }

  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(const std::shared_ptr<Work::State>& work) {
    {
      const std::lock_guard lock(tasks_->mutex);
      tasks_->waiting.push_back(work);
    }
    tasks_->changed.notify_all();
  }

  const std::string& name() const { return name_; }
  Priority priority() const { return priority_; }

 private:
  void report(const std::exception_ptr& error) const {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& reason) {
      log().error("Stream '{}' ended with an error that nobody waited for: {}", name_, reason.what());
    } catch (...) {
      log().error("Stream '{}' ended with an error that nobody waited for.", name_);
    }
  }

  std::string name_;
  Priority priority_;
  std::shared_ptr<Tasks> tasks_;
  std::thread thread_;
};

const char* name(Priority priority) {
  switch (priority) {
    case Priority::background: return "background";
    case Priority::normal: return "normal";
    case Priority::urgent: return "urgent";
  }
  return "unknown";
}

Stream::Stream(std::string name, Priority priority) : queue_(std::make_shared<Queue>(std::move(name), priority)) {}

Work Stream::enqueue(std::function<void()> task) const {
  Work work = Work::reserve();
  enqueue(std::move(task), work);
  return work;
}

void Stream::enqueue(std::function<void()> task, const Work& reserved) const {
  const std::shared_ptr<Work::State>& work = reserved.state();
  work->task = std::move(task);
  {
    const std::lock_guard lock(work->mutex);
    work->times.enqueued = now_seconds();
  }
  if (queue_) return queue_->push(work);
  work->run(nullptr);
  {
    const std::lock_guard lock(work->mutex);  // others read the ledger
    work->times.waited = work->times.done - work->times.started;
  }
  if (work->error) std::rethrow_exception(work->error);
}

void Stream::wait(const Work& work) const {
  if (work.state()) {
    const std::lock_guard lock(work.state()->mutex);
    work.state()->require_enqueued();
  }
  enqueue([work] { work.wait(); });
}

void Stream::wait(const Event& event) const { wait(event.place_); }

void Stream::record(Event& event) const {
  event.place_ = enqueue([] {});
}

void Stream::synchronize() const {
  enqueue([] {}).wait();
}

const std::string& Stream::name() const {
  static const auto& inline_name = *new std::string("inline");
  return queue_ ? queue_->name() : inline_name;
}

Priority Stream::priority() const { return queue_ ? queue_->priority() : Priority::urgent; }

bool Event::reached() const { return place_.done(); }
void Event::wait() const { place_.wait(); }

}  // namespace stretto
