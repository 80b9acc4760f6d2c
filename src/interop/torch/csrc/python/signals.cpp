#include "python/signals.hpp"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace stretto_torch {
namespace {

std::exception_ptr raised;  // of the main thread

// Keeps Python's exception out of the operation's error, which outlives it and which other threads read.
void run_handlers_in_operation() {
  static std::chrono::steady_clock::time_point next;
  const auto now = std::chrono::steady_clock::now();
  if (now < next) return;
  next = now + between_signals;
  try {
    run_signal_handlers();
  } catch (const pybind11::error_already_set& error) {
    raised = std::current_exception();
    const pybind11::gil_scoped_acquire gil;
    throw std::runtime_error("a handler of a signal raised " + pybind11::str(error.type()).cast<std::string>() + ".");
  }
}

}  // namespace

bool is_python_main_thread() { return gettid() == getpid() && Py_IsInitialized() != 0; }

void run_signal_handlers() {
  if (!is_python_main_thread()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

HandlersWhileWaiting::HandlersWhileWaiting() {
  if (!is_python_main_thread()) return;
  before_ = stretto::while_waiting({run_handlers_in_operation, std::chrono::duration<double>(between_signals).count()});
}

HandlersWhileWaiting::~HandlersWhileWaiting() {
  if (is_python_main_thread()) stretto::while_waiting(before_);
}

void HandlersWhileWaiting::raise() {
  if (is_python_main_thread() && raised) std::rethrow_exception(std::exchange(raised, nullptr));
}

}  // namespace stretto_torch
