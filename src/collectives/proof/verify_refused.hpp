#pragma once
#include <string>
#include <utility>

#include "core/fail.hpp"

namespace stretto {

// Why the verifier refuses plans.
struct Refused {
  std::string sentence;
};

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) throw Refused{fmt::format(sentence, std::forward<Args>(args)...)};
}

}  // namespace stretto
