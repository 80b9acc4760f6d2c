#include "workers.hpp"

#include <pthread.h>

#include <thread>
#include <utility>

namespace stretto_torch {

void Workers::run(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (tasks_.size() <= idle_) {
    has_task_.notify_one();
    return;
  }
  // Detached: one of its threads may release the last reference to this object.
  std::thread([self = shared_from_this()] { self->work(); }).detach();
  ++threads_;
}

void Workers::work() {
  pthread_setname_np(pthread_self(), "stretto_torch");
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    has_task_.wait(lock, [&] { return closing_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // without the mutex: the task may hold the last reference to anything
    lock.lock();
  }
  --threads_;
  one_ended_.notify_all();
}

bool Workers::close(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  has_task_.notify_all();
  return one_ended_.wait_until(lock, until, [&] { return threads_ == 0; });
}

}  // namespace stretto_torch
