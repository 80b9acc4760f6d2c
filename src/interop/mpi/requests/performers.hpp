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
// Ranks may start persistent calls in different orders, so a call that waits for other ranks must not hold up a call that
// was started later. A thread for each call would be enough for that, but where all ranks start their calls in one order,
// calls are faster one after the other on a thread that is awake. So a thread performs one call after the other, and another
// thread takes over when a call has not ended within `patience`. Every call is begun within that time, whatever the others
// do; time decides only on which thread.
class Performers {
 public:
  // Performs the task, which throws nothing, on one of the threads.
  void add(std::function<void()> task);
  // Joins the threads. Every task must have ended, or be about to end.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds patience{1};

  void work();
  void call_thread();  // with the mutex held: some thread will look at the waiting tasks; makes one where all are busy

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::list<Clock::time_point> begun_;  // of the tasks that are being performed; the latest is last
  int free_ = 0;                        // threads that perform nothing; one at least while tasks wait
  int watching_ = 0;                    // of these, threads that wait for the patience with the latest task to end
  bool stopping_ = false;
  std::vector<Stream> threads_;
};

}  // namespace stretto::mpi_door
