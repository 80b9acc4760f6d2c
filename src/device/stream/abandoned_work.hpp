#pragma once
#include <exception>
#include <string_view>

#include "core/log.hpp"

namespace stretto {

// For destructors, whose works may still use what is about to go: calls `wait`, and logs what it throws, since nobody is
// left to catch it. `what` is the log line's subject, such as "A message between stages".
template <class Wait>
void wait_for_abandoned(std::string_view what, Wait wait) noexcept {
  try {
    wait();
  } catch (const std::exception& error) {
    log().debug("{} that nobody waited for has failed: {}", what, error.what());
  }
}

}  // namespace stretto
