#include "work.hpp"

#include "python/signals.hpp"

namespace stretto_torch {
namespace {

FuturePtr future_of_tensors() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

OperationWork::OperationWork(std::shared_ptr<Workers> workers, int rank, c10d::OpType type, const char* title,
                             const Tensors& inputs, Tensors outputs)
    : c10d::Work(rank, type, title, inputs), workers_(std::move(workers)), outputs_(std::move(outputs)) {}

// A work whose future was taken is complete only when the future is; otherwise the future would complete a moment later.
bool OperationWork::isCompleted() {
  if (!c10d::Work::isCompleted()) return false;
  const std::lock_guard lock(future_mutex_);
  return !future_ || future_->completed();
}

// Returns when the work has ended or the time is over.
void OperationWork::wait_for_signals(Milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  while (!completed_) {
    auto slice = std::chrono::steady_clock::now() + between_signals;
    if (timeout != kNoTimeout) slice = std::min(slice, until);
    if (cv_.wait_until(lock, slice) == std::cv_status::no_timeout) continue;
    lock.unlock();
    run_signal_handlers();
    if (slice == until) return;
    lock.lock();
  }
}

bool OperationWork::wait(Milliseconds timeout) {
  if (is_python_main_thread()) {
    wait_for_signals(timeout);
    if (timeout != kNoTimeout) timeout = Milliseconds(1);
  }
  const bool done = c10d::Work::wait(timeout);
  FuturePtr future;
  {
    const std::lock_guard lock(future_mutex_);
    future = future_;
  }
  if (future) future->wait();
  return done;
}

Tensors OperationWork::result() {
  TORCH_CHECK(isCompleted(), "The result of an operation was asked for before it was done; wait() for it first.");
  return outputs_;
}

FuturePtr OperationWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (!future_) {
    future_ = future_of_tensors();
    if (settled_) {
      complete_future();  // no caller has it yet, so no callback runs
    } else {
      future_is_taken();
    }
  }
  return future_;
}

int OperationWork::sourceRank() const {
  const int source = source_;
  TORCH_CHECK(source >= 0, "Only a message that was received has a source rank.");
  return source;
}

bool OperationWork::settle(const std::exception_ptr& error) {
  const std::lock_guard lock(future_mutex_);
  if (settled_) return false;
  settled_ = true;
  has_callbacks_ = future_ != nullptr;
  error_ = error;
  return true;
}

void OperationWork::complete_future() {
  if (error_) {
    future_->setError(error_);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
}

void OperationWork::end(const std::exception_ptr& error) {
  if (!settle(error)) return;
  tell_waiters();
  if (!has_callbacks()) return;
  workers_->run([self = c10::intrusive_ptr<OperationWork>::reclaim_copy(this)] { self->complete_future(); });
}

JoinedWork::JoinedWork(int rank, std::vector<WorkPtr> parts) : c10d::Work(rank), parts_(std::move(parts)) {}

FuturePtr JoinedWork::getFuture() {
  std::call_once(future_made_, [this] { make_future(); });
  return future_;
}

// The part that ends last completes the future, so no thread has to wait for the parts.
void JoinedWork::make_future() {
  future_ = future_of_tensors();
  if (parts_.empty()) future_->markCompleted(c10::IValue(Tensors()));
  struct Count {
    std::atomic<std::size_t> left;
    std::vector<WorkPtr> parts;
  };
  auto count = std::make_shared<Count>();
  count->left = parts_.size();
  count->parts = parts_;
  for (const WorkPtr& part : parts_) {
    part->getFuture()->addCallback([count, future = future_](c10::ivalue::Future&) {
      if (--count->left > 0) return;
      Tensors all;
      std::exception_ptr error;
      for (const WorkPtr& each : count->parts) {
        const FuturePtr ended = each->getFuture();
        if (ended->hasError()) {
          error = error ? error : ended->exception_ptr();
        } else {
          const Tensors some = ended->value().toTensorVector();
          all.insert(all.end(), some.begin(), some.end());
        }
      }
      count->parts.clear();  // the parts hold this callback, which holds the parts
      if (error) {
        future->setError(error);
      } else {
        future->markCompleted(c10::IValue(all));
      }
    });
  }
}

bool JoinedWork::isCompleted() {
  for (const WorkPtr& part : parts_) {
    if (!part->isCompleted()) return false;
  }
  return true;
}

bool JoinedWork::isSuccess() const { return !exception(); }

std::exception_ptr JoinedWork::exception() const {
  for (const WorkPtr& part : parts_) {
    if (const std::exception_ptr error = part->exception()) return error;
  }
  return nullptr;
}

bool JoinedWork::wait(Milliseconds timeout) {
  for (const WorkPtr& part : parts_) part->wait(timeout);
  return true;
}

Tensors JoinedWork::result() {
  Tensors all;
  for (const WorkPtr& part : parts_) {
    const Tensors some = part->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace stretto_torch
