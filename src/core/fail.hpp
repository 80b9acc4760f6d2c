#pragma once
#include <fmt/core.h>

#include "stretto/error.hpp"

namespace stretto {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> sentence, Args&&... args) {
  throw Error(code, fmt::format(sentence, std::forward<Args>(args)...));
}

// For the commonest case: a value that the caller has to change.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) fail(ErrorCode::invalid_argument, sentence, std::forward<Args>(args)...);
}

// For what can only be false through a bug of ours.
template <class... Args>
void ensure(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) fail(ErrorCode::internal, sentence, std::forward<Args>(args)...);
}

// A system call's reason in words; takes errno by value so that formatting cannot change it.
std::string errno_text(int error);

}  // namespace stretto
