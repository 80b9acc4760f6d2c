#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "core/fail.hpp"
#include "device/stream/stream_queue.hpp"
#include "device/stream/ticks.hpp"
#include "device/stream/unwinding.hpp"
#include "stretto/stream.hpp"

namespace stretto {

// Notifies without the mutex, which woken threads need.
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

// Settles the works before it first, since it takes over their errors. Not recursive: a stream may be long.
bool Work::State::settle() {
  struct Entry {
    std::shared_ptr<State> kept;  // null for this work
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
  std::function<void()> dropped;  // destroyed after the mutex is released
  std::vector<std::shared_ptr<State>> followed;
  const std::lock_guard lock(mutex);
  if (finished || !marks) return finished;
  try {
    if (!marks->done()) return false;
    const double waited = times.waited;
    times = marks->times(times.enqueued);
    times.waited = waited;
  } catch (...) {  // the GPU has failed, and with it all of its remaining work
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
  } catch (const std::exception&) {  // the GPU has failed, the work is part of a graph, or this thread records one
  }
}

const std::shared_ptr<std::atomic<const Work::State*>>& work_awaited_by_this_thread() {
  thread_local const auto awaited = std::make_shared<std::atomic<const Work::State*>>(nullptr);
  return awaited;
}

namespace {

class ProgramWaits {
 public:
  ProgramWaits() {
    if (!on_worker_thread) ++waiting_program_threads;
  }
  ~ProgramWaits() {
    if (!on_worker_thread) --waiting_program_threads;
  }
  ProgramWaits(const ProgramWaits&) = delete;
  ProgramWaits& operator=(const ProgramWaits&) = delete;
};

}  // namespace

void Work::State::wait_until_ended() {
  require(made_at == forks, "A work belongs to the process that called fork(); its child cannot wait for it.");
  std::unique_lock lock(mutex);
  require_enqueued();
  if (finished) return;
  const ProgramWaits waits;
  const AwaitsWork awaits(this);
  const double from = now_seconds();
  const auto is_on_its_way = [&] { return finished || marks; };
  const std::chrono::duration<double> patience(seconds_before_notice);
  if (unwinding() && !changed.wait_for(lock, patience, is_on_its_way)) {
    lock.unlock();
    tell_of_unwinding();
    lock.lock();
  }
  changed.wait(lock, is_on_its_way);
  if (const std::shared_ptr<GpuMarks> on_gpu = marks) {
    lock.unlock();
    while (unwinding() && !on_gpu->done() && now_seconds() < from + seconds_before_notice) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (unwinding() && !on_gpu->done()) tell_of_unwinding();
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
  // If computation() reached that place only after the work was done, it did not have to wait.
  if (waited_from.state_ && waited_from.done()) times.waited += std::max(0.0, times.done - waited_from.times().done);
  return times;
}

}  // namespace stretto
