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
// stream of its own. But a thread that waits for a collective which has not begun runs it itself, after those before it: a
// blocking call then needs no thread switch.
//
// A worker also runs the callbacks of the collectives that it has run. Meanwhile another worker takes its place, since
// callbacks may wait for further operations.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  using Task = std::function<void(const stretto::Stream&)>;

  Lane(std::string name, std::shared_ptr<Workers> workers);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void push(c10::intrusive_ptr<LaneWork> work);
  // Must be called before the calling thread waits for this work, which may be inside a callback.
  void expect(const LaneWork& work);
  // Returns when this work has begun. Runs the waiting collectives if no other thread does.
  void run_up_to(const LaneWork& work);
  void open_callbacks(LaneWork& work);
  // Accepts no more work, and blocks until all accepted work is done. Returns false if it is not done by `until`.
  bool drain(std::chrono::steady_clock::time_point until);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // An operation waits at most most_slices slices for earlier callbacks that neither start an operation nor return. Only
  // slices that pass while this process runs count: after a pause of the process its callbacks continue first.
  static constexpr std::chrono::milliseconds slice{100};
  static constexpr int most_slices = 20;

  void work();
  void call_worker();  // with the mutex held, while operations wait
  bool may_run() const;
  c10::intrusive_ptr<LaneWork> run_first(Lock& lock, const stretto::Stream& stream);
  void call_back(LaneWork& work);

  const std::string name_;
  const std::shared_ptr<Workers> workers_;
  std::mutex mutex_;
  std::condition_variable has_work_;  // for the workers
  std::condition_variable changed_;   // for all other threads
  CallOrder order_;
  std::deque<c10::intrusive_ptr<LaneWork>> waiting_;  // in the order of CallOrder
  bool running_ = false;
  int ending_ = 0;              // works that have run, but whose waiters are still being told
  int available_ = 0;           // workers that are in work(), and not in callbacks
  bool called_ = false;         // a worker is on its way to work()
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
  // Guarded by the lane's mutex:
  CallOrder::Place place_;
  CallOrder::Place callbacks_;  // of its future; empty until the future is taken
  bool begun_ = false;
};

}  // namespace stretto_torch
