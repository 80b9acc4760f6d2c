#pragma once
#include <functional>
#include <optional>
#include <string>

namespace stretto {

// What launchers tell a process through its environment.
struct LaunchedAs {
  int rank = 0;
  int size = 1;
  std::string launcher;  // whose variables they were
  std::string host;      // MASTER_ADDR
  int port = 0;          // where Stretto's rank 0 is met
};
// Nothing when no launcher's variables are there. Throws when they contradict each other or the meeting place is missing.
std::optional<LaunchedAs> launched_as();

// Forks that many children, runs body(rank) in each and returns 0, or the exit status of the first that failed (128 + signal
// for a killed one, which comes before those that ended because of it). Children die with this process. When one fails the
// others have a few seconds to end by themselves.
int fork_ranks(int count, const std::function<int(int rank)>& body);

}  // namespace stretto
