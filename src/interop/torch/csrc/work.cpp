#include "work.hpp"

namespace stretto_torch {
namespace {

FuturePtr future_of_tensors() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

OperationWork::OperationWork(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs)
    : c10d::Work(rank, type, title, inputs), outputs_(std::move(outputs)), future_(future_of_tensors()) {}

Tensors OperationWork::result() {
  TORCH_CHECK(isCompleted(), "The result of an operation was asked for before it was done; wait() for it first.");
  return outputs_;
}

int OperationWork::sourceRank() const {
  const int source = source_;
  TORCH_CHECK(source >= 0, "Only a message that was received has a source rank.");
  return source;
}

void OperationWork::end(const std::exception_ptr& error) {
  if (ended_.exchange(true)) return;
  finish(error);
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
}

// The future ends by whichever part ends last, so that it needs no thread.
JoinedWork::JoinedWork(int rank, std::vector<WorkPtr> parts)
    : c10d::Work(rank), parts_(std::move(parts)), future_(future_of_tensors()) {
  if (parts_.empty()) future_->markCompleted(c10::IValue(Tensors()));
  struct Count {
    std::atomic<std::size_t> left;
    std::vector<WorkPtr> parts;
  };
  auto count = std::make_shared<Count>();
  count->left = parts_.size();
  count->parts = parts_;
  for (const WorkPtr& part : parts_) {
    part->getFuture()->addCallback([count, future = future_](c10::ivalue::Future&) {
      if (--count->left > 0) return;
      Tensors all;
      std::exception_ptr error;
      for (const WorkPtr& each : count->parts) {
        const FuturePtr ended = each->getFuture();
        if (ended->hasError()) {
          error = error ? error : ended->exception_ptr();
        } else {
          const Tensors some = ended->value().toTensorVector();
          all.insert(all.end(), some.begin(), some.end());
        }
      }
      count->parts.clear();  // which hold this callback
      if (error) {
        future->setError(error);
      } else {
        future->markCompleted(c10::IValue(all));
      }
    });
  }
}

bool JoinedWork::isCompleted() {
  for (const WorkPtr& part : parts_) {
    if (!part->isCompleted()) return false;
  }
  return true;
}

bool JoinedWork::isSuccess() const { return !exception(); }

std::exception_ptr JoinedWork::exception() const {
  for (const WorkPtr& part : parts_) {
    if (const std::exception_ptr error = part->exception()) return error;
  }
  return nullptr;
}

bool JoinedWork::wait(Milliseconds timeout) {
  for (const WorkPtr& part : parts_) part->wait(timeout);
  return true;
}

Tensors JoinedWork::result() {
  Tensors all;
  for (const WorkPtr& part : parts_) {
    const Tensors some = part->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace stretto_torch
