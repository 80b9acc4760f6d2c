#pragma once
#include <functional>
#include <string>
#include <vector>

#include "collectives/execution/give_up.hpp"
#include "core/fail.hpp"
#include "transport/link_broken.hpp"
#include "transport/network.hpp"
#include "transport/wait.hpp"

namespace stretto {

enum class Progressed { nothing, something, to_the_end };

// Throws LinkBroken if one of these ranks has left the job and nothing has moved for so long that all it sent before must
// have come. idle_seconds: since something moved. what(): the operation.
void check_present(const std::vector<int>& ranks, Network& network, double idle_seconds,
                   const std::function<std::string()>& what);
constexpr double seconds_to_hear_the_rest = 1;  // of a rank of this host that has left

// Calls advance() until it returns to_the_end, and waits by the policy after each call that moved nothing. Throws if nothing
// has moved for `timeout` seconds, or one of the awaited() ranks has left the job, or any rank is lost. describe(): the
// operation; history(): the last ones (give_up()). Calls note_wait() at each look of a wait that is no longer short.
template <class Advance, class Awaited, class Describe, class History, class NoteWait>
void run_until_done(Network& network, const WaitPolicy& policy, double timeout, Advance advance, Awaited awaited,
                    Describe describe, History history, NoteWait note_wait) {
  forget_looks();  // an earlier operation that ended without a pause may have asked for some
  Waiter waiter(policy, network.segment().bell());
  AwaitedRanks::Wait wait(network.awaited_ranks());
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
    const double idle = waiter.idle_seconds();
    if (idle > seconds_to_hear_the_rest) wait.note(awaited());
    if (idle > timeout) give_up(awaited(), network, describe(), history());
    if (idle > seconds_to_hear_the_rest && network.job().any_left()) check_present(awaited(), network, idle, describe);
    waiter.pause();
  }
}

// Throws the job's error, or this one with the losses of ranks without which the job goes on. A link breaks most often
// because its peer has died, and the job knows that, with the rank's name, at the same time or a moment later: so this waits
// until the job has lost that peer. It waits at most 2 s, as a connection may break between two ranks that both live.
[[noreturn]] void throw_named(const LinkBroken& broken, const JobControl& job);

template <class Body>
void naming_losses(const JobControl& job, Body body) {
  try {
    body();
  } catch (const LinkBroken& broken) {
    throw_named(broken, job);
  }
}

}  // namespace stretto
