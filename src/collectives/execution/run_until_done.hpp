#pragma once
#include <chrono>
#include <thread>

#include "core/fail.hpp"
#include "transport/network.hpp"
#include "transport/wait.hpp"

namespace stretto {

enum class Progressed { nothing, something, to_the_end };

// Calls advance() until it is at its end, and waits between two looks that find nothing as the policy says. When nothing has
// moved for so many seconds, give_up() throws. A lost rank of the job throws, too.
template <class Advance, class GiveUp>
void run_until_done(Network& network, const WaitPolicy& policy, double timeout, Advance advance, GiveUp give_up) {
  forget_looks();  // an operation that ended without a pause may have asked for some
  Waiter waiter(policy, network.segment().bell());
  while (true) {
    const Progressed progressed = advance();
    if (progressed == Progressed::to_the_end) return;
    if (progressed == Progressed::something) {
      waiter.moved();
      continue;
    }
    if (waiter.pause_briefly()) continue;
    network.job().check();
    if (waiter.idle_seconds() > timeout) give_up();
    waiter.pause();
  }
}

// For what body() throws: a broken connection, or a peer's memory that is not there, is often the echo of a death elsewhere,
// of which the job learns by itself a moment later and by name.
template <class Body>
void naming_losses(Network& network, Body body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost && error.code() != ErrorCode::unavailable) throw;
    for (int look = 0; look < 100; ++look) {
      network.job().check();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw;
  }
}

}  // namespace stretto
