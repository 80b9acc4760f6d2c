#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace stretto_torch {

// The threads of a group that run its collectives and the callbacks of its futures. A callback may start operations and wait
// for them, so no task may have to wait until another one returns: each gets an idle thread at once, or a new one. A group
// so has as many threads as tasks were ever under way at once, until it is left.
class Workers : public std::enable_shared_from_this<Workers> {
 public:
  Workers() = default;
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // The task throws nothing. Returns at once.
  void run(std::function<void()> task);
  // Threads end when they are idle from now on. Waits for that, but not for tasks that are still under way by then: those
  // keep their threads. False: there are some.
  bool close(std::chrono::steady_clock::time_point until);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable has_task_;
  std::condition_variable one_ended_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;  // threads that wait for a task; one that was woken counts until it looks
  int threads_ = 0;
  bool closing_ = false;
};

}  // namespace stretto_torch
