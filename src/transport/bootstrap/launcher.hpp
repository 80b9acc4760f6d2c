#pragma once
#include <functional>
#include <optional>
#include <string>

namespace stretto {

// The data that launchers give a process through its environment.
struct LaunchedAs {
  int rank = 0;
  int size = 1;
  std::string launcher;  // its name
  std::string job;       // with the number that the launcher gave to the job; empty if it gave none
  std::string host;      // MASTER_ADDR
  int port = 0;          // on which Stretto's rank 0 listens
};
// Returns nothing if no launcher's variables are set. Throws if they contradict each other, are RANK without WORLD_SIZE, or
// do not say where to meet.
std::optional<LaunchedAs> launched_as();

// The child by which a job failed, and what became of it: "was killed by SIGKILL".
struct LostChild {
  int rank = -1;
  std::string fate;
};
// A child's status if it failed only because another rank did, and if it found that the job cannot go on without rank 0.
// Both count as 1.
constexpr int failed_with_others = 250;
constexpr int lost_rank_0 = 251;

// Forks `count` children, runs body(rank) in each and returns 0, or the exit status of the first child that failed (128 +
// signal if it was killed). A killed child counts as the first even if children that failed because of it are seen to end
// earlier. Children die with this process. If one fails, the others have a few seconds to end by themselves; if
// survivors_go_on, only if that one is rank 0, whose status is then returned, or ends with lost_rank_0: rank 0 may be
// stopped, or hang. all_started is called in this process when all of them run. lost: is filled in if the status is not 0.
int fork_ranks(int count, const std::function<int(int rank)>& body, const std::function<void()>& all_started = {},
               bool survivors_go_on = false, LostChild* lost = nullptr);

}  // namespace stretto
