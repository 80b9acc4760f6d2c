#include <dlfcn.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <string>

namespace stretto {
namespace {

TEST(UcxSignals, BelongToTheProgram) {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0) continue;
    void* handler = nullptr;
    std::memcpy(&handler, &action.sa_sigaction, sizeof handler);
    Dl_info where{};
    if (handler == nullptr || dladdr(handler, &where) == 0) continue;
    EXPECT_EQ(std::string(where.dli_fname).find("libucs"), std::string::npos) << "signal " << number;
  }
}

}  // namespace
}  // namespace stretto
