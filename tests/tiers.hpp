#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

// `./dev test` runs the cases that find most faults in little time; `./dev test --all` sets STRETTO_TEST_ALL=1, and the
// tests then run every case.
namespace stretto::testing {

// Inside namespace stretto, `testing::X` finds this namespace first; GoogleTest's names must stay visible through it.
using namespace ::testing;  // NOLINT(google-build-using-namespace)

// Whether every case runs, rather than the default selection.
inline bool all_tests() {
  const char* const value = std::getenv("STRETTO_TEST_ALL");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace stretto::testing
