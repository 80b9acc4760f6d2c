#pragma once
#include <string>
#include <utility>

#include "core/fail.hpp"

namespace stretto {

// Thrown if the verifier finds a fault in the plans.
struct Refused {
  std::string sentence;
};

// Separate from demand(), so that the code of a demand that holds stays small.
template <class... Args>
[[noreturn, gnu::noinline, gnu::cold]] void refuse(fmt::format_string<Args...> sentence, Args&&... args) {
  throw Refused{fmt::format(sentence, std::forward<Args>(args)...)};
}

// The arguments are evaluated even if the condition holds. If they are costly, write `if (...) refuse(...)`.
template <class... Args>
void demand(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) [[unlikely]] {
    refuse(sentence, std::forward<Args>(args)...);
  }
}

}  // namespace stretto
