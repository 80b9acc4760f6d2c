#pragma once
#include <cstdlib>
#include <string_view>

// `./dev test` runs the cases that find most faults in little time; `./dev test --all` sets STRETTO_TEST_ALL=1, and the
// tests then run every case.
namespace stretto {

// Whether every case runs, rather than the default selection.
inline bool all_tests() {
  const char* const value = std::getenv("STRETTO_TEST_ALL");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace stretto
