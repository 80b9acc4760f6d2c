#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace stretto_torch {

// The threads of a group that run its collectives and the callbacks of its futures. A callback may start operations and wait
// for them, so no task may wait for another task to return: each gets an idle thread at once, or a new one. Until the group
// is left, it keeps as many threads as it ever had tasks in flight at once.
class Workers : public std::enable_shared_from_this<Workers> {
 public:
  Workers() = default;
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // The task must not throw. Returns at once.
  void run(std::function<void()> task);
  // From now on threads end when they are idle. Blocks until all have ended, or until `until`. Threads whose tasks are still
  // running then continue. Returns false if there are such threads.
  bool close(std::chrono::steady_clock::time_point until);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable has_task_;
  std::condition_variable one_ended_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;  // threads that wait for a task; a thread that was woken counts until it takes one
  int threads_ = 0;
  bool closing_ = false;
};

}  // namespace stretto_torch
