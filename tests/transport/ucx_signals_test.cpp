#include <dlfcn.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "transport/ucx/ucx_library.hpp"

namespace stretto {
namespace {

void report_crash(int) {}

// The handler of each signal; null where the default applies.
std::vector<void*> handlers() {
  std::vector<void*> all(NSIG);
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0) std::memcpy(&all[number], &action.sa_sigaction, sizeof(void*));
  }
  return all;
}

bool has_ucx() { return dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST(UcxSignals, BelongToTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // starts the program again, without UCX
  const auto run = [] {
    std::signal(SIGSEGV, report_crash);
    const std::vector<void*> before = handlers();
    const bool had_ucx = has_ucx();
    load_ucx();
    std::_Exit(had_ucx ? 1 : !has_ucx() ? 2 : handlers() != before ? 3 : 0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stretto
