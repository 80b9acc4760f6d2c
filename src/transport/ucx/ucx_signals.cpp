// UCX takes SIGHUP and the signals of crashes when it is loaded, so that a program would survive its terminal, and handlers
// that it had would be gone. They are the program's: UCX gets only those that UCX_HANDLE_ERRORS or UCX_DEBUG_SIGNO ask for.
#include <dlfcn.h>
#include <ucs/debug/debug.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace stretto {
namespace {

bool is_of_ucx(const struct sigaction& action) {
  Dl_info where{};
  void* handler = nullptr;
  std::memcpy(&handler, &action.sa_sigaction, sizeof handler);  // a union with sa_handler
  if (handler == nullptr || dladdr(handler, &where) == 0) return false;
  return std::strstr(where.dli_fname, "libucs") != nullptr;
}

// Runs when the library is loaded, behind UCX's own beginning and before anything of the program's.
__attribute__((constructor)) void give_signals_back() {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr || std::getenv("UCX_DEBUG_SIGNO") != nullptr) return;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && is_of_ucx(action)) ucs_debug_disable_signal(number);
  }
}

}  // namespace
}  // namespace stretto
