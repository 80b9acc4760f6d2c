#include "messages/lane.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

namespace stretto_torch {

Lane::Lane(std::string name)
    : name_(std::move(name)),
      beside_(name_, stretto::Priority::normal, stretto::Device::cpu),
      thread_([this] { work_through(); }) {}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  has_work_.notify_all();
  thread_.join();
}

void Lane::push(c10::intrusive_ptr<LaneWork> work) {
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!draining_, "Group '", name_, "' has been destroyed, and takes no more operations.");
    waiting_.push_back(std::move(work));
  }
  has_work_.notify_one();
}

void Lane::run_up_to(const LaneWork& work) {
  std::unique_lock lock(mutex_);
  while (!work.begun_) {
    if (running_) {
      changed_.wait(lock);
    } else {
      run_next(lock, stretto::Stream::inline_());
    }
  }
}

bool Lane::drain(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return changed_.wait_until(lock, until, [&] { return waiting_.empty() && !running_ && ending_ == 0; });
}

void Lane::work_through() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [&] { return closing_ || (!waiting_.empty() && !running_); });
    if (closing_) return;
    run_next(lock, beside_);
  }
}

// The work's own end comes last, and without the mutex: what its future calls may start operations and wait for them.
void Lane::run_next(std::unique_lock<std::mutex>& lock, const stretto::Stream& stream) {
  c10::intrusive_ptr<LaneWork> work = std::move(waiting_.front());
  waiting_.pop_front();
  running_ = true;
  work->begun_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    // Tensors are memory here: nothing of it is differentiated, and who wants a gradient may be written to.
    const at::AutoDispatchBelowADInplaceOrView plain;
    work->task_(stream);
  } catch (...) {
    error = std::current_exception();
  }
  work->task_ = nullptr;  // and the buffers that it holds
  lock.lock();
  // A stream that has failed fails all that comes later, but a call that was refused has harmed nobody.
  if (error && stream == beside_) beside_ = stretto::Stream(name_, stretto::Priority::normal, stretto::Device::cpu);
  running_ = false;
  ++ending_;
  const bool more = !waiting_.empty();
  lock.unlock();
  changed_.notify_all();
  if (more) has_work_.notify_one();
  work->end(error);
  work.reset();  // perhaps the last to hold this lane
  lock.lock();
  if (--ending_ == 0) changed_.notify_all();
}

bool LaneWork::wait(Milliseconds timeout) {
  if (timeout == kNoTimeout) lane_->run_up_to(*this);
  return OperationWork::wait(timeout);
}

}  // namespace stretto_torch
