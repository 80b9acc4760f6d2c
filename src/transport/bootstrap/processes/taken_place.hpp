#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "transport/bootstrap/processes/pinning.hpp"

// The cores that this process is bound to, for a job that goes on after a larger one has failed, which had divided them
// anew.
namespace stretto {

// The last take_place() that no leave_place() has followed.
struct TakenPlace {
  std::vector<HardwareThreads> places;
  std::size_t rank = 0;
  bool on_shared_core = false;
};
std::optional<TakenPlace> place_taken();

// Binds this process as it was at place_taken(). The host's first rank claims the cores of all again, but for those that
// another job has claimed meanwhile; the next leave_place(), or the end of the process, ends that.
void return_to(const std::optional<TakenPlace>& place);

}  // namespace stretto
