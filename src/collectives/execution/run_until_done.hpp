#pragma once
#include <chrono>
#include <thread>

#include "core/fail.hpp"
#include "transport/network.hpp"
#include "transport/wait.hpp"

namespace stretto {

enum class Progressed { nothing, something, to_the_end };

// Calls advance() until it returns to_the_end, and waits by the policy after each call that moved nothing. If nothing has
// moved for `timeout` seconds, calls give_up(), which must throw. Also throws if a rank of the job is lost. Calls
// note_wait() at each look of a wait that is no longer short.
template <class Advance, class GiveUp, class NoteWait>
void run_until_done(Network& network, const WaitPolicy& policy, double timeout, Advance advance, GiveUp give_up,
                    NoteWait note_wait) {
  forget_looks();  // an earlier operation that ended without a pause may have left some
  Waiter waiter(policy, network.segment().bell());
  while (true) {
    const Progressed progressed = advance();
    if (progressed == Progressed::to_the_end) return;
    if (progressed == Progressed::something) {
      waiter.moved();
      continue;
    }
    if (waiter.pause_briefly()) continue;
    note_wait();
    network.job().check();
    if (waiter.idle_seconds() > timeout) give_up();
    waiter.pause();
  }
}

// Calls body(). An error of body() about a broken connection, or about a peer's memory that is gone, is often the
// consequence of another rank's death. The job learns of that death a moment later, with the rank's name: so this waits for
// it, and throws the job's error instead.
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
