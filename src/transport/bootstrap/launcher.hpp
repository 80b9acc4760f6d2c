#pragma once
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

}  // namespace stretto
