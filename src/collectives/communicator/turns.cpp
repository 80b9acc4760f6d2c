#include "collectives/communicator/turns.hpp"

#include <chrono>

#include "core/fail.hpp"

namespace stretto {

void Turns::give_up() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  changed_.notify_all();
}

void Turns::check_usable() const {
  job_.check();  // throws a better sentence, if the job is the reason
  if (broken_)
    fail(ErrorCode::internal, "Communicator '{}' is unusable since an earlier operation on it failed.", communicator_);
}

Turn::Turn(std::shared_ptr<Turns> turns) : turns_(std::move(turns)) {
  const std::lock_guard lock(turns_->mutex_);
  number_ = turns_->next_++;
}

Turn::~Turn() {
  if (!done_) finish(true);
}

void Turn::wait() {
  const auto is_now = [&] { return turns_->current_ == number_ || turns_->broken_; };
  std::unique_lock lock(turns_->mutex_);
  // The earlier operations end by themselves, in time or with an error. The job may end before that.
  while (!turns_->changed_.wait_for(lock, std::chrono::milliseconds(200), is_now)) {
    lock.unlock();
    turns_->job_.check();
    lock.lock();
  }
  if (turns_->broken_) {
    lock.unlock();
    turns_->check_usable();
  }
}

void Turn::finish(bool failed) {
  done_ = true;
  const std::lock_guard lock(turns_->mutex_);
  if (failed) turns_->broken_ = true;
  ++turns_->current_;
  turns_->changed_.notify_all();
}

}  // namespace stretto
