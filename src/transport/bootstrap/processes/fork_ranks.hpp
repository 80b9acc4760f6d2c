#pragma once
#include <functional>
#include <string>

namespace stretto {

// The child by which a job failed, and what became of it: "was killed by SIGKILL".
struct LostChild {
  int rank = -1;
  std::string fate;
  bool killed_here = false;  // it could not tell why it ended
};
// A child's status if it failed only because another rank did, and if it found that the job cannot go on without rank 0.
// Both count as 1.
constexpr int failed_with_others = 250;
constexpr int lost_rank_0 = 251;

// Forks `count` children, runs body(rank) in each and returns 0, or the exit status of the first child that failed (128 +
// signal if it was killed). A killed child counts as the first even if children that failed because of it are seen to end
// earlier. Children die with this process. The others have a few seconds to end by themselves when one fails; if
// survivors_go_on, only when that one is rank 0, whose status is then returned, or ends with lost_rank_0: rank 0 may hang.
// So they have if one has ended and all others are stopped (SIGSTOP), which counts as failure if nobody wakes them.
// all_started is called in this process when all of them run. lost: is filled in if the status is not 0.
int fork_ranks(int count, const std::function<int(int rank)>& body, const std::function<void()>& all_started = {},
               bool survivors_go_on = false, LostChild* lost = nullptr);

}  // namespace stretto
