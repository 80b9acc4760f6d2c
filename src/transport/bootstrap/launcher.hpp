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

// Forks `count` children, runs body(rank) in each and returns 0, or the exit status of the first child that failed (128 +
// signal if it was killed). A killed child counts as the first even if children that failed because of it are seen to end
// earlier. Children die with this process. If one fails, the others have a few seconds to end by themselves.
// all_started is called in this process when all of them run.
int fork_ranks(int count, const std::function<int(int rank)>& body, const std::function<void()>& all_started = {});

}  // namespace stretto
