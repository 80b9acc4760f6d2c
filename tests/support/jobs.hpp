#pragma once
#include <chrono>
#include <thread>

#include "stretto/communicator.hpp"
#include "stretto/error.hpp"

namespace stretto {

// What a rank does that is in no operation while the others wait for it: returns when they have failed.
inline void wait_until_others_fail(const Communicator& world) {
  try {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) world.job().check_ranks();
  } catch (const Error&) {
  }
}

}  // namespace stretto
