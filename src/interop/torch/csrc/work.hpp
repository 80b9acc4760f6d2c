#pragma once
#include <atomic>
#include <exception>

#include "torch_version.hpp"

namespace stretto_torch {

// What every operation of this backend hands out. It ends once, and its future with it: with the output tensors, or with the
// error that wait() throws, too.
class OperationWork : public c10d::Work {
 public:
  OperationWork(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs);

  Tensors result() override;
  FuturePtr getFuture() override { return future_; }
  int sourceRank() const override;

  void received_from(int rank) { source_ = rank; }  // before it ends
  void end(const std::exception_ptr& error);        // the first call counts

 private:
  Tensors outputs_;
  FuturePtr future_;
  std::atomic<int> source_ = -1;
  std::atomic<bool> ended_ = false;
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
  FuturePtr getFuture() override { return future_; }

 private:
  std::vector<WorkPtr> parts_;
  FuturePtr future_;
};

}  // namespace stretto_torch
