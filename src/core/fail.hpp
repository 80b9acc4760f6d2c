#pragma once
#include <fmt/core.h>

#include "stretto/error.hpp"

namespace stretto {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> sentence, Args&&... args) {
  throw Error(code, fmt::format(sentence, std::forward<Args>(args)...));
}

// For arguments that the caller must change.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) fail(ErrorCode::invalid_argument, sentence, std::forward<Args>(args)...);
}

// For conditions that only a bug of the library makes false.
template <class... Args>
void ensure(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) fail(ErrorCode::internal, sentence, std::forward<Args>(args)...);
}

// The system's text for an errno. If descriptors have run out, it also names the limit and how to raise it. `error` is a
// copy, since formatting may change errno.
std::string errno_text(int error);
bool lacks_descriptors(int error);

}  // namespace stretto
