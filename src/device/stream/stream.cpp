#include "stretto/stream.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/log.hpp"
#include "device/gpu.hpp"
#include "device/stream/graph_recording.hpp"
#include "device/stream/short_time_slice.hpp"
#include "device/stream/stream_queue.hpp"
#include "device/stream/unwinding.hpp"
#include "stretto/device.hpp"

namespace stretto {
double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Shared by the worker thread and the stream's handles; the thread keeps it alive until its own end.
struct Tasks {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Work::State>> waiting;
  bool closing = false;
  bool ended = false;                   // no task is left, and none comes
  std::shared_ptr<Work::State> failed;  // the first task that failed; every later task fails with its error

  void work_through() {
    on_worker_thread = true;
    run_promptly();
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !waiting.empty(); });
      if (waiting.empty()) {
        ended = true;
        changed.notify_all();
        return;
      }
      const std::shared_ptr<Work::State> work = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      work->run(failed);
      lock.lock();
      if (!failed && work->error) failed = work;
    }
  }
};

void Stream::Queue::report(const std::shared_ptr<Work::State>& failed) const {
  if (!failed || failed->error_seen || unwinding()) return;  // the exception in flight says more
  try {
    std::rethrow_exception(failed->error);
  } catch (const std::exception& reason) {
    log().error("Stream '{}' ended with an error that nobody waited for: {}", name(), reason.what());
  } catch (...) {
    log().error("Stream '{}' ended with an error that nobody waited for.", name());
  }
}

// A stream of the host: a worker thread.
class HostQueue final : public Stream::Queue {
 public:
  HostQueue(std::string name, Priority priority) : Queue(std::move(name), priority), tasks_(std::make_shared<Tasks>()) {
    count_forks();
    thread_ = std::thread([tasks = tasks_] { tasks->work_through(); });
    pthread_setname_np(thread_.native_handle(), this->name().substr(0, 15).c_str());
  }

  ~HostQueue() override {
    if (made_at_ != forks) {                // in the child there is no such thread, and a mutex that it held stays locked
      new std::thread(std::move(thread_));  // NOLINT(bugprone-unhandled-exception-at-new)
      new std::shared_ptr<Tasks>(std::move(tasks_));  // NOLINT(bugprone-unhandled-exception-at-new)
      return;
    }
    const bool own_task = thread_.get_id() == std::this_thread::get_id();
    {
      std::unique_lock lock(tasks_->mutex);
      tasks_->closing = true;
      tasks_->changed.notify_all();
      const std::chrono::duration<double> patience(seconds_before_notice);
      if (unwinding() && !own_task && !tasks_->changed.wait_for(lock, patience, [&] { return tasks_->ended; })) {
        lock.unlock();
        tell_of_unwinding();
      }
    }
    // A task may own the last handle of its own stream, and a thread cannot join itself.
    if (own_task) {
      thread_.detach();
    } else {
      thread_.join();
      report(tasks_->failed);
    }
  }

  void push(const std::shared_ptr<Work::State>& work) override {
    require(made_at_ == forks, "Stream '{}' belongs to the process that called fork(); make another one in its child.",
            name());
    {
      const std::lock_guard lock(tasks_->mutex);
      tasks_->waiting.push_back(work);
    }
    tasks_->changed.notify_all();
  }

  void wait(const Work& work) override {
    const Work waits = Work::reserve();
    waits.state()->task = [work] { work.wait(); };
    waits.state()->times.enqueued = now_seconds();
    push(waits.state());
  }

  Device device() const override { return Device::cpu; }

 private:
  std::shared_ptr<Tasks> tasks_;
  std::thread thread_;
  const int made_at_ = forks;
};

const char* name(Priority priority) {
  switch (priority) {
    case Priority::background: return "background";
    case Priority::normal: return "normal";
    case Priority::urgent: return "urgent";
  }
  return "unknown";
}

Stream::Stream(std::string name, Priority priority) : Stream(std::move(name), priority, current_device()) {}

Stream::Stream(std::string name, Priority priority, Device device) {
  if (device == Device::cpu) {
    queue_ = std::make_shared<HostQueue>(std::move(name), priority);
  } else {
    queue_ = gpu_queue(std::move(name), priority);
  }
}

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
    work->in_computation = is_gpu_computation();
  }
  if (queue_) return queue_->push(work);
  work->run(nullptr);
  {
    const std::lock_guard lock(work->mutex);  // other threads read the times for the ledger
    work->times.waited = work->times.done - work->times.started;
  }
  if (work->error) std::rethrow_exception(work->error);
}

void Stream::wait(const Work& work) const {
  if (work.state()) {
    const std::lock_guard lock(work.state()->mutex);
    work.state()->require_enqueued();
  }
  if (!queue_) return work.wait();
  if (work.state() && is_gpu_computation()) work.state()->note_wait(*this);
  queue_->wait(work);
}

// False while a graph of the stream is recorded: works in a graph have no times.
bool Stream::is_gpu_computation() const {
  return queue_ && queue_->device() == Device::cuda && recording == nullptr && *this == computation();
}

void Stream::wait(const Event& event) const { wait(event.place_); }

void Stream::wait(const Stream& other) const {
  if (other.is_inline() || other == *this) return;
  Event place;
  other.record(place);
  wait(place);
}

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

Device Stream::device() const { return queue_ ? queue_->device() : Device::cpu; }

Priority Stream::priority() const { return queue_ ? queue_->priority() : Priority::urgent; }

bool Event::reached() const { return place_.done(); }
void Event::wait() const { place_.wait(); }

}  // namespace stretto
