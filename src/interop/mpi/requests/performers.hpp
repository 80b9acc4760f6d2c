#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "stretto/stream.hpp"

namespace stretto::mpi_door {

// The threads that perform persistent calls.
//
// Ranks may start persistent calls in different orders, so a call that waits for other ranks must not delay a call that was
// started later. One thread for each call would be enough for that. But if all ranks start their calls in one order, calls
// are faster one after the other on a thread that is awake. So a thread performs one call after the other, and another
// thread takes over if a call has not ended within `patience`. Every call begins at most `patience` after the one before it,
// whatever the others do; timing decides only which thread performs it.
class Performers {
 public:
  // Performs the task on one of the threads. The task must not throw.
  void add(std::function<void()> task);
  // Joins the threads. Every task must have ended, or be about to end.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds patience{1};

  void work();
  void call_thread();  // with the mutex held: wakes a thread for the waiting tasks, or makes one if all are busy

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::list<Clock::time_point> begun_;  // start times of the tasks that are being performed; the latest is last
  int free_ = 0;                        // threads that perform no task; at least one while tasks wait
  int watching_ = 0;                    // free threads that give the latest task its `patience` to end
  bool stopping_ = false;
  std::vector<Stream> threads_;
};

}  // namespace stretto::mpi_door
