#include "stretto/stream.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/graph_recording.hpp"
#include "device/prompt_thread.hpp"
#include "device/stream_queue.hpp"
#include "device/ticks.hpp"
#include "stretto/device.hpp"

namespace stretto {
double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Who is woken needs the mutex: it is free by then.
void Work::State::begin() {
  {
    const std::lock_guard lock(mutex);
    times.started = now_seconds();
  }
  changed.notify_all();
}

void Work::State::end(std::exception_ptr with) {
  task = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(with);
    times.done = now_seconds();
    finished = true;
  }
  changed.notify_all();
}

void Work::State::run(const std::shared_ptr<State>& failed_before) {
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

void Work::State::go_on(std::shared_ptr<GpuMarks> at, std::vector<std::shared_ptr<State>> follows) {
  {
    const std::lock_guard lock(mutex);
    marks = std::move(at);
    behind = std::move(follows);
  }
  changed.notify_all();
}

// What it is behind comes first, whose errors it takes over. No recursion: a stream may be long.
bool Work::State::settle() {
  struct Entry {
    std::shared_ptr<State> kept;  // but for this one
    State* state;
    bool asked;
  };
  if (!is_past()) return false;
  std::vector<Entry> open{{nullptr, this, false}};
  bool ended = false;
  while (!open.empty()) {
    State& state = *open.back().state;
    if (!open.back().asked && state.is_past()) {
      open.back().asked = true;
      std::vector<std::shared_ptr<State>> first;
      {
        const std::lock_guard lock(state.mutex);
        first = state.behind;
      }
      for (const auto& each : first) open.push_back({each, each.get(), false});
      continue;
    }
    ended = state.finish();
    open.pop_back();
  }
  return ended;
}

bool Work::State::finish() {
  std::shared_ptr<GpuMarks> gone;
  std::function<void()> dropped;  // what they held goes without the mutex
  std::vector<std::shared_ptr<State>> followed;
  const std::lock_guard lock(mutex);
  if (finished || !marks) return finished;
  try {
    if (!marks->done()) return false;
    const double waited = times.waited;
    times = marks->times(times.enqueued);
    times.waited = waited;
  } catch (...) {  // the GPU has failed, and with it all that it had still to do
    if (!error) error = std::current_exception();
    times.done = now_seconds();
  }
  followed = std::move(behind);
  for (const auto& each : followed) {
    if (error) break;
    error = each->failure();
    if (error) cause = each;
  }
  finished = true;
  gone = std::move(marks);
  dropped = std::move(task);
  return true;
}

bool Work::State::is_past() {
  std::shared_ptr<GpuMarks> on_gpu;
  {
    const std::lock_guard lock(mutex);
    if (finished || !marks) return finished;
    on_gpu = marks;
  }
  try {
    return on_gpu->done();
  } catch (const std::exception&) {
    return true;
  }
}

void Work::State::wait_until_past() {
  std::shared_ptr<GpuMarks> on_gpu;
  {
    const std::lock_guard lock(mutex);
    on_gpu = marks;
  }
  try {
    if (on_gpu) on_gpu->wait_done();
  } catch (const std::exception&) {  // the GPU has failed; or it is part of a graph, or one is being recorded
  }
}

void Work::State::wait_until_ended() {
  std::unique_lock lock(mutex);
  require_enqueued();
  if (finished) return;
  const double from = now_seconds();
  changed.wait(lock, [&] { return finished || marks; });
  if (const std::shared_ptr<GpuMarks> on_gpu = marks) {
    lock.unlock();
    on_gpu->wait_done();
    settle();
    lock.lock();
  }
  if (!on_worker_thread) times.waited += now_seconds() - from;
}

std::exception_ptr Work::State::wait_for_end() {
  wait_until_ended();
  error_seen = true;
  for (State* seen = cause.get(); seen != nullptr; seen = seen->cause.get()) seen->error_seen = true;
  return error;
}

bool Work::State::has_started() {
  std::shared_ptr<GpuMarks> on_gpu;
  {
    const std::lock_guard lock(mutex);
    if (finished || !marks) return finished || times.started > 0;
    on_gpu = marks;
  }
  return on_gpu->started();
}

void Work::State::note_wait(const Stream& computation) {
  {
    const std::lock_guard lock(mutex);
    if (finished || !marks || waited_from.state()) return;
  }
  if (settle()) return;
  const Work place = computation.enqueue([] {});
  const std::lock_guard lock(mutex);
  waited_from = place;
}

bool Work::State::is_being_put_in() {
  const std::lock_guard lock(mutex);
  return !finished && !marks;
}

std::exception_ptr Work::State::failure() const {
  const std::lock_guard lock(mutex);
  return error;
}

void Work::State::fail_with(std::exception_ptr with, const std::shared_ptr<State>& why) {
  const std::lock_guard lock(mutex);
  if (finished || error) return;
  error = std::move(with);
  cause = why;
}

Work Work::reserve() { return Work(std::make_shared<State>()); }

void Work::wait() const {
  if (!state_) return;
  if (const std::exception_ptr error = state_->wait_for_end()) std::rethrow_exception(error);
}

void Work::wait_started() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->require_enqueued();
  state_->changed.wait(lock, [&] { return state_->finished || state_->times.started > 0 || state_->marks; });
  if (const std::shared_ptr<GpuMarks> on_gpu = state_->marks) {
    lock.unlock();
    on_gpu->wait_started();
  }
}

bool Work::done() const { return !state_ || state_->settle(); }

WorkTimes Work::times() const {
  if (!state_) {
    const Span span = seconds_of(started_ticks_, done_ticks_);
    return {span.begin, span.begin, span.end, span.end - span.begin};
  }
  state_->settle();
  WorkTimes times;
  Work waited_from;
  bool in_computation = false;
  {
    const std::lock_guard lock(state_->mutex);
    times = state_->times;
    waited_from = state_->waited_from;
    in_computation = state_->in_computation;
  }
  if (times.done == 0) return times;
  if (in_computation) times.waited = std::max(times.waited, times.done - times.started);
  // Where that place was not reached before the work was done, nobody had to wait.
  if (waited_from.state_ && waited_from.done()) times.waited += std::max(0.0, times.done - waited_from.times().done);
  return times;
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

void Stream::Queue::report(const std::shared_ptr<Work::State>& failed) const {
  if (!failed || failed->error_seen) return;
  try {
    std::rethrow_exception(failed->error);
  } catch (const std::exception& reason) {
    log().error("Stream '{}' ended with an error that nobody waited for: {}", name(), reason.what());
  } catch (...) {
    log().error("Stream '{}' ended with an error that nobody waited for.", name());
  }
}

// A worker thread.
class HostQueue final : public Stream::Queue {
 public:
  HostQueue(std::string name, Priority priority) : Queue(std::move(name), priority), tasks_(std::make_shared<Tasks>()) {
    thread_ = std::thread([tasks = tasks_] { tasks->work_through(); });
    pthread_setname_np(thread_.native_handle(), this->name().substr(0, 15).c_str());
  }

  ~HostQueue() override {
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
      report(tasks_->failed);
    }
  }

  void push(const std::shared_ptr<Work::State>& work) override {
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
};

std::shared_ptr<Stream::Queue> gpu_queue(std::string name, Priority priority);  // gpu_stream.cpp

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
  if (!queue_) return work.wait();
  if (work.state() && is_gpu_computation()) work.state()->note_wait(*this);
  queue_->wait(work);
}

// And nobody records a graph of it, in which nothing has a time.
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
