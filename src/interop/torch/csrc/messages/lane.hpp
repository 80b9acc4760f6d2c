#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "call_order.hpp"
#include "stretto/stream.hpp"
#include "work.hpp"

namespace stretto_torch {

class LaneWork;

// The collectives of one group, one at a time and in one order (CallOrder). A worker runs them beside the program, on a
// stream of its own; but a thread that waits for one that has not begun runs it, and those before it, itself: a call that
// blocks costs no change of threads.
//
// A worker also runs the callbacks of what it has run. Meanwhile another one stands in for it, since callbacks may wait for
// further operations.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  using Task = std::function<void(const stretto::Stream&)>;

  Lane(std::string name, std::shared_ptr<Workers> workers);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void push(c10::intrusive_ptr<LaneWork> work);
  // The calling thread is going to wait for this work, perhaps inside a callback.
  void expect(const LaneWork& work);
  // Returns when this one has begun: runs what waits, where nobody else does.
  void run_up_to(const LaneWork& work);
  void open_callbacks(LaneWork& work);
  // No more are taken; waits until those that were are done. False: they were not, by then.
  bool drain(std::chrono::steady_clock::time_point until);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // How long operations wait for callbacks before them that neither start one nor return. Only slices that pass while this
  // process runs count: after a pause of the process, its callbacks go on first.
  static constexpr std::chrono::milliseconds slice{100};
  static constexpr int most_slices = 20;

  void work();
  void call_worker();  // with the mutex held, where operations wait
  bool may_run() const;
  c10::intrusive_ptr<LaneWork> run_first(Lock& lock, const stretto::Stream& stream);
  void call_back(LaneWork& work);

  const std::string name_;
  const std::shared_ptr<Workers> workers_;
  std::mutex mutex_;
  std::condition_variable has_work_;  // the workers'
  std::condition_variable changed_;   // everybody else's
  CallOrder order_;
  std::deque<c10::intrusive_ptr<LaneWork>> waiting_;  // in that order
  bool running_ = false;
  int ending_ = 0;              // works that have been run, and whose waiters are being told
  int available_ = 0;           // workers that are here, and not in callbacks
  bool called_ = false;         // one is on its way
  std::uint64_t progress_ = 0;  // operations that have been run, and callbacks that have returned
  bool draining_ = false;
  stretto::Stream beside_;
};

class LaneWork : public OperationWork {
 public:
  LaneWork(std::shared_ptr<Lane> lane, std::shared_ptr<Workers> workers, Lane::Task task, int rank, c10d::OpType type,
           const char* title, const Tensors& inputs, Tensors outputs)
      : OperationWork(std::move(workers), rank, type, title, inputs, std::move(outputs)),
        lane_(std::move(lane)),
        task_(std::move(task)) {}

  bool wait(Milliseconds timeout) override;

 private:
  friend class Lane;
  void future_is_taken() override { lane_->open_callbacks(*this); }

  const std::shared_ptr<Lane> lane_;
  Lane::Task task_;
  // Under the lane's mutex:
  CallOrder::Place place_;
  CallOrder::Place callbacks_;  // of its future, once that is taken
  bool begun_ = false;
};

}  // namespace stretto_torch
