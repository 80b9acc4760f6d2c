#include "stand_in/host_stream.hpp"

#include <chrono>
#include <exception>

namespace stretto {

void Marker::reach(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    seconds_ = seconds;
  }
  changed_.notify_all();
}

bool Marker::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Marker::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

double Marker::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

void Failure::note(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (what_.empty()) what_ = what;
}

std::string Failure::what() const {
  const std::lock_guard lock(mutex_);
  return what_;
}

HostStream::HostStream(std::shared_ptr<Failure> failure, Delays delays)
    : failure_(std::move(failure)),
      chance_(delays.seed),
      longest_us_(delays.longest_us),
      thread_([this] { work_through(); }) {}

HostStream::~HostStream() {
  close();
  thread_.join();
}

void HostStream::put(std::function<void()> function, bool always) {
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({std::move(function), always});
  }
  changed_.notify_all();
}

void HostStream::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
}

bool HostStream::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void HostStream::work_through() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !entries_.empty(); });
    if (entries_.empty()) break;
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    lock.unlock();
    sleep();
    if (entry.always || failure_->what().empty()) {
      try {
        entry.function();
      } catch (const std::exception& error) {
        failure_->note(error.what());
      }
    }
    entry = {};  // destroys the function's captures without the mutex
    lock.lock();
  }
  ended_ = true;
}

void HostStream::sleep() {
  if (longest_us_ == 0 || chance_() % 2 == 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(chance_() % static_cast<std::uint64_t>(longest_us_)));
}

}  // namespace stretto
