#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "stretto/stream.hpp"
#include "work.hpp"

namespace stretto_torch {

class LaneWork;

// The operations of one group, one at a time and in the order of the calls. The lane's thread runs them beside the program,
// on a stream of its own; but who waits for one that has not begun runs it, and what stands before it, in his own thread: a
// call that blocks costs no change of threads.
class Lane {
 public:
  using Task = std::function<void(const stretto::Stream&)>;

  explicit Lane(std::string name);
  ~Lane();  // everything must be done: see drain()
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void push(c10::intrusive_ptr<LaneWork> work);
  // Until this one has begun: runs what waits, where nobody else does.
  void run_up_to(const LaneWork& work);
  // No more are taken; waits until those that were are done. False: they were not, by then.
  bool drain(std::chrono::steady_clock::time_point until);

 private:
  void work_through();
  void run_next(std::unique_lock<std::mutex>& lock, const stretto::Stream& stream);

  std::string name_;
  std::mutex mutex_;
  std::condition_variable has_work_;  // the thread's
  std::condition_variable changed_;   // everybody else's
  std::deque<c10::intrusive_ptr<LaneWork>> waiting_;
  bool running_ = false;
  int ending_ = 0;  // works that are done, but whose own end is under way
  bool draining_ = false;
  bool closing_ = false;
  stretto::Stream beside_;
  std::thread thread_;
};

class LaneWork : public OperationWork {
 public:
  LaneWork(std::shared_ptr<Lane> lane, Lane::Task task, int rank, c10d::OpType type, const char* title,
           const Tensors& inputs, Tensors outputs)
      : OperationWork(rank, type, title, inputs, std::move(outputs)), lane_(std::move(lane)), task_(std::move(task)) {}

  bool wait(Milliseconds timeout) override;

 private:
  friend class Lane;
  std::shared_ptr<Lane> lane_;
  Lane::Task task_;
  bool begun_ = false;  // under the lane's mutex
};

}  // namespace stretto_torch
