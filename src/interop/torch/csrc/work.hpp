#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>

#include "torch_version.hpp"
#include "workers.hpp"

namespace stretto_torch {

// What every operation of this backend hands out. It ends once, and its future with it: with the output tensors, or with the
// error that wait() throws, too.
//
// Callbacks of the future run on a thread of the group's workers: they may block, and the thread that performed the
// operation is needed for the next one. A work whose future nobody takes has none, which spares that thread.
class OperationWork : public c10d::Work {
 public:
  OperationWork(std::shared_ptr<Workers> workers, int rank, c10d::OpType type, const char* title, const Tensors& inputs,
                Tensors outputs);

  bool isCompleted() override;
  bool wait(Milliseconds timeout) override;
  Tensors result() override;
  FuturePtr getFuture() override;
  int sourceRank() const override;

  void received_from(int rank) { source_ = rank; }  // before it ends
  void end(const std::exception_ptr& error);        // the first call counts

 protected:
  // end() in its parts. From settle() on, whoever takes the future gets a complete one. False: it was settled before.
  bool settle(const std::exception_ptr& error);
  bool has_callbacks() const { return has_callbacks_; }  // for all that is known: its future was taken before settle()
  void tell_waiters() { finish(error_); }
  void complete_future();  // runs the callbacks
  virtual void future_is_taken() {}

  const std::shared_ptr<Workers> workers_;

 private:
  const Tensors outputs_;
  mutable std::mutex future_mutex_;
  FuturePtr future_;  // under the mutex
  bool settled_ = false;
  bool has_callbacks_ = false;
  std::exception_ptr error_;
  std::atomic<int> source_ = -1;
};

// Of several operations: done when all of them are, and failed as the first of them that did.
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
