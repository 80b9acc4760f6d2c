#pragma once
#include <exception>

#include "interop/c/handles.hpp"

// No exception leaves a function of the C interface: it becomes a result code, and a sentence for strettoGetLastError().
namespace stretto::c {

// Thrown for a failure that is known already: of a call in a group, of an operation that has ended.
struct PassedOn {
  Failure failure;
};
Failure failure_of(const std::exception_ptr& error);

// Keeps the sentence for this thread, and for the communicator, if there is one.
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

// For calls on a communicator: action(comm).
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
