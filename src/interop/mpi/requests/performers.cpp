#include "requests/performers.hpp"

#include <utility>

namespace stretto::mpi_door {

void Performers::call_thread() {
  if (free_ == 0) {
    ++free_;
    threads_.emplace_back("mpi persistent", Priority::normal, Device::cpu);
    threads_.back().enqueue([this] { work(); });
  } else if (begun_.empty() || watching_ == 0) {
    changed_.notify_one();
  }
}

void Performers::add(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(task));
  call_thread();
}

void Performers::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (waiting_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto now = Clock::now();
    if (!begun_.empty() && now < begun_.back() + patience) {
      ++watching_;
      changed_.wait_until(lock, begun_.back() + patience);
      --watching_;
      continue;
    }
    const std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    const auto place = begun_.insert(begun_.end(), now);
    --free_;
    if (!waiting_.empty()) call_thread();
    lock.unlock();
    task();
    lock.lock();
    begun_.erase(place);
    ++free_;
  }
}

void Performers::stop() {
  std::vector<Stream> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    threads.swap(threads_);
  }
}

}  // namespace stretto::mpi_door
