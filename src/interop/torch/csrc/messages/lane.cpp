#include "messages/lane.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "python/signals.hpp"

namespace stretto_torch {

using LaneWorkPtr = c10::intrusive_ptr<LaneWork>;

Lane::Lane(std::string name, std::shared_ptr<Workers> workers)
    : name_(std::move(name)),
      workers_(std::move(workers)),
      beside_(name_, stretto::Priority::normal, stretto::Device::cpu) {}

void Lane::push(LaneWorkPtr work) {
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!draining_, "Group '", name_, "' has been destroyed, and takes no more operations.");
    late = order_.is_late();
    work->place_ = order_.take_place();
    const auto behind = std::upper_bound(waiting_.begin(), waiting_.end(), work->place_,
                                         [](const auto& place, const LaneWorkPtr& each) { return place < each->place_; });
    waiting_.insert(behind, std::move(work));
    call_worker();
  }
  if (late) {
    TORCH_WARN_ONCE(
        "A callback of a future has started a collective after operations behind it had waited ",
        most_slices * slice.count(),
        " ms for it. Ranks may run these in different orders: start collectives in callbacks earlier, or wait for "
        "the future before the next operation.");
  }
}

void Lane::call_worker() {
  if (available_ > 0) {
    has_work_.notify_one();
  } else if (!called_) {
    called_ = true;
    workers_->run([self = shared_from_this()] { self->work(); });
  }
}

bool Lane::may_run() const { return !running_ && !order_.must_wait(waiting_.front()->place_); }

void Lane::work() {
  Lock lock(mutex_);
  called_ = false;
  ++available_;
  int slices = 0;
  std::uint64_t seen = progress_;
  while (!waiting_.empty()) {
    if (!may_run()) {
      const bool passed = has_work_.wait_for(lock, slice) == std::cv_status::timeout;
      slices = running_ || progress_ != seen ? 0 : slices + (passed ? 1 : 0);
      seen = progress_;
      if (slices < most_slices || waiting_.empty()) continue;
      order_.pass(waiting_.front()->place_);
      changed_.notify_all();
      continue;
    }
    LaneWorkPtr work = run_first(lock, beside_);
    const bool has_callbacks = work->has_callbacks();
    if (has_callbacks) {
      --available_;
      if (!waiting_.empty()) call_worker();
    }
    lock.unlock();
    if (has_callbacks) call_back(*work);
    work.reset();  // its tensors are released without the mutex
    lock.lock();
    if (has_callbacks) ++available_;
  }
  --available_;
}

void Lane::expect(const LaneWork& work) {
  const std::lock_guard lock(mutex_);
  if (work.begun_) return;
  order_.wait_for(work.place_);
  call_worker();
}

void Lane::run_up_to(const LaneWork& work) {
  Lock lock(mutex_);
  order_.wait_for(work.place_);
  while (!work.begun_) {
    if (!may_run()) {
      if (changed_.wait_for(lock, between_signals) == std::cv_status::no_timeout) continue;
      lock.unlock();
      run_signal_handlers();
      lock.lock();
      continue;
    }
    LaneWorkPtr ran = run_first(lock, stretto::Stream::inline_());
    if (!waiting_.empty()) call_worker();
    lock.unlock();
    if (ran->has_callbacks()) workers_->run([self = shared_from_this(), ran] { self->call_back(*ran), self->work(); });
    ran.reset();
    lock.lock();
  }
}

void Lane::open_callbacks(LaneWork& work) {
  const std::lock_guard lock(mutex_);
  work.callbacks_ = order_.open(work.place_);
}

void Lane::call_back(LaneWork& work) {
  {
    const CallOrder::Callbacks here(order_, work.callbacks_);
    work.complete_future();
  }
  {
    const std::lock_guard lock(mutex_);
    order_.close(work.callbacks_);
    ++progress_;
  }
  changed_.notify_all();
}

bool Lane::drain(std::chrono::steady_clock::time_point until) {
  Lock lock(mutex_);
  draining_ = true;
  return changed_.wait_until(lock, until, [&] { return waiting_.empty() && !running_ && ending_ == 0; });
}

// Settles the work before the next one may begin. Its future has been taken by then, and its callbacks come first, or the
// work will never have callbacks.
LaneWorkPtr Lane::run_first(Lock& lock, const stretto::Stream& stream) {
  LaneWorkPtr work = std::move(waiting_.front());
  waiting_.pop_front();
  running_ = true;
  work->begun_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    // The operation treats tensors as plain memory: autograd does not record it, and it may write to leaves that require a
    // gradient.
    const at::AutoDispatchBelowADInplaceOrView plain;
    work->task_(stream);
  } catch (...) {
    error = std::current_exception();
  }
  work->task_ = nullptr;  // also releases the buffers that the task holds
  work->settle(error);
  lock.lock();
  // A failed stream fails all later operations. But a refused call harms none of these, so they get a new stream.
  if (error && stream == beside_) beside_ = stretto::Stream(name_, stretto::Priority::normal, stretto::Device::cpu);
  running_ = false;
  ++progress_;
  ++ending_;
  lock.unlock();
  changed_.notify_all();
  work->tell_waiters();
  lock.lock();
  if (--ending_ == 0) changed_.notify_all();
  return work;
}

bool LaneWork::wait(Milliseconds timeout) {
  const HandlersWhileWaiting here;
  try {
    if (timeout == kNoTimeout) {
      lane_->run_up_to(*this);
    } else {
      lane_->expect(*this);
    }
    return OperationWork::wait(timeout);
  } catch (...) {
    HandlersWhileWaiting::raise();
    throw;
  }
}

}  // namespace stretto_torch
