#pragma once
#include <chrono>

#include "stretto/stream.hpp"

// Python runs the handlers of signals, such as that of Ctrl-C, in its main thread, and never while that thread is in C++. So
// the door's blocking calls run them while they wait, several times a second. If a handler raises, the wait ends, and the
// call raises the handler's exception.
namespace stretto_torch {

constexpr std::chrono::milliseconds between_signals{100};

bool is_python_main_thread();
// Runs the handlers that are due, if this is Python's main thread. Throws what a handler raises, as py::error_already_set.
// The caller must not hold a mutex that a handler's calls may need; the GIL may be held or not.
void run_signal_handlers();

// While this object lives, handlers also run in this thread's waits inside Stretto. There, a handler that raises fails the
// operation that this thread performs, and with it the group.
class HandlersWhileWaiting {
 public:
  HandlersWhileWaiting();
  ~HandlersWhileWaiting();
  HandlersWhileWaiting(const HandlersWhileWaiting&) = delete;
  HandlersWhileWaiting& operator=(const HandlersWhileWaiting&) = delete;

  // Throws the exception that a handler has raised since the last call, if any.
  static void raise();

 private:
  stretto::Meanwhile before_;
};

}  // namespace stretto_torch
