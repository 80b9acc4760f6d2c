#pragma once
#include <exception>

#include "interop/c/handles.hpp"

// No exception leaves a function of the C interface: it becomes a result code, and a sentence for strettoGetLastError().
namespace stretto::c {

// Passes on a failure that was noted before, by a call inside a group or by an operation that has ended.
struct PassedOn {
  Failure failure;
};
Failure failure_of(const std::exception_ptr& error);

// Keeps the sentence as this thread's last error and, if `comm` is not null, as the communicator's. Returns the failure's
// result code.
strettoResult_t note(const Failure& failure, strettoComm* comm) noexcept;

template <class Action>
strettoResult_t answer(const Action& action) noexcept {
  try {
    action();
    return strettoSuccess;
  } catch (...) {
    return note(failure_of(std::current_exception()), nullptr);
  }
}

// Like answer(), for calls on a communicator: finds the communicator of `handle` and calls action(comm).
template <class Action>
strettoResult_t answer_on(const strettoComm* handle, const Action& action) noexcept {
  std::shared_ptr<strettoComm> comm;
  try {
    comm = communicators().find(handle);
    action(comm);
    return strettoSuccess;
  } catch (...) {
    return note(failure_of(std::current_exception()), comm.get());
  }
}

}  // namespace stretto::c
