#pragma once
#include <functional>
#include <string>

namespace stretto {

// The child whose failure ended a job, and its fate: "was killed by SIGKILL".
struct LostChild {
  int rank = -1;
  std::string fate;
  bool by_signal = false;    // killed by a signal, so it printed no reason
  bool killed_here = false;  // killed by this process, since it did not end with the others
};
// A child's status if it failed only because another rank did, and if it found that the job cannot go on without rank 0.
// Both count as 1.
constexpr int failed_with_others = 250;
constexpr int lost_rank_0 = 251;

// Forks `count` children, runs body(rank) in each and returns 0, or the exit status of the first child that failed (128 +
// signal if it was killed). A killed child counts as the first even if children that failed because of it are seen to end
// earlier. Children die with this process. The children that are left have eight seconds to end, and are killed then:
// - when one has failed; if survivors_go_on, only when rank 0 has ended, whose status is returned, or when a child ends with
//   lost_rank_0, since rank 0 may hang;
// - when one has ended and all others are stopped (SIGSTOP). This counts as failure, unless somebody wakes them in time.
// all_started is called in this process when all children run. lost: is filled in if the status is not 0. wanted, with
// survivors_go_on: is asked while fewer than `count` children are left and rank 0 runs, and returns how many to fork now,
// which get the next numbers from `count` on, or a negative number: it need not be asked again. One of them that cannot be
// forked is logged, and ends nobody.
int fork_ranks(int count, const std::function<int(int rank)>& body, const std::function<void()>& all_started = {},
               bool survivors_go_on = false, LostChild* lost = nullptr, const std::function<int(int left)>& wanted = {});

}  // namespace stretto
