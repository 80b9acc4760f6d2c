#pragma once
#include <fmt/format.h>

#include "stretto/error.hpp"

namespace apps {

template <class... Args>
[[noreturn]] void fail(stretto::ErrorCode code, fmt::format_string<Args...> sentence, Args&&... args) {
  throw stretto::Error(code, fmt::format(sentence, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) fail(stretto::ErrorCode::invalid_argument, sentence, std::forward<Args>(args)...);
}

}  // namespace apps
