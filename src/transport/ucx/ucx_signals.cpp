// UCX installs handlers for SIGHUP and for the signals of crashes when it is loaded: a program would survive the end of its
// terminal, and would lose its own handlers. So UCX gets only the signals that UCX_HANDLE_ERRORS or UCX_DEBUG_SIGNO name.
#include <dlfcn.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "transport/ucx/ucx_library.hpp"

namespace stretto {
namespace {

bool is_of_ucx(const struct sigaction& action) {
  Dl_info where{};
  void* handler = nullptr;
  std::memcpy(&handler, &action.sa_sigaction, sizeof handler);  // a union with sa_handler
  if (handler == nullptr || dladdr(handler, &where) == 0) return false;
  return std::strstr(where.dli_fname, "libucs") != nullptr;
}

void give_signals_back() {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr || std::getenv("UCX_DEBUG_SIGNO") != nullptr) return;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && is_of_ucx(action)) ucs_debug_disable_signal(number);
  }
}

}  // namespace

void load_ucx() {
  [[maybe_unused]] static const bool loaded = [] {
    ucx_library.function("ucp_init_version");
    give_signals_back();
    return true;
  }();
}

}  // namespace stretto
