#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/error.hpp"

namespace perf {

// Calls name the namespace where src/core/fail.hpp may be included, too: it has functions of the same names for the same
// types.

template <class... Args>
[[noreturn]] void fail(stretto::ErrorCode code, fmt::format_string<Args...> sentence, Args&&... args) {
  throw stretto::Error(code, fmt::format(sentence, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) perf::fail(stretto::ErrorCode::invalid_argument, sentence, std::forward<Args>(args)...);
}

}  // namespace perf
