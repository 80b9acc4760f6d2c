#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>

#include "torch_version.hpp"
#include "workers.hpp"

namespace stretto_torch {

// The work that every operation of this backend returns. It ends once, together with its future: with the output tensors, or
// with the error that wait() throws.
//
// Callbacks of the future run on one of the group's worker threads: they may block, while the thread that performed the
// operation is needed for the next one. The future is made when it is first taken; a work without one does not need that
// thread.
class OperationWork : public c10d::Work {
 public:
  OperationWork(std::shared_ptr<Workers> workers, int rank, c10d::OpType type, const char* title, const Tensors& inputs,
                Tensors outputs);

  bool isCompleted() override;
  bool wait(Milliseconds timeout) override;
  Tensors result() override;
  FuturePtr getFuture() override;
  int sourceRank() const override;

  void received_from(int rank) { source_ = rank; }  // must precede end()
  void end(const std::exception_ptr& error);        // only the first call counts

 protected:
  // The steps of end(). A future that is taken after settle() is complete at once. settle() returns false if it was called
  // before.
  bool settle(const std::exception_ptr& error);
  // True if the future was taken before settle(), so that it may have callbacks.
  bool has_callbacks() const { return has_callbacks_; }
  void tell_waiters() { finish(error_); }
  void complete_future();  // runs the callbacks
  virtual void future_is_taken() {}

  const std::shared_ptr<Workers> workers_;

 private:
  void wait_for_signals(Milliseconds timeout);

  const Tensors outputs_;
  mutable std::mutex future_mutex_;
  FuturePtr future_;  // under the mutex
  bool settled_ = false;
  bool has_callbacks_ = false;
  std::exception_ptr error_;
  std::atomic<int> source_ = -1;
};

// Several operations as one work: done when all of them are; fails with the error of the first part that failed.
class JoinedWork : public c10d::Work {
 public:
  JoinedWork(int rank, std::vector<WorkPtr> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(Milliseconds timeout) override;
  Tensors result() override;
  FuturePtr getFuture() override;

 private:
  void make_future();

  std::vector<WorkPtr> parts_;
  std::once_flag future_made_;
  FuturePtr future_;
};

}  // namespace stretto_torch
