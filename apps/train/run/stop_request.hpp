#pragma once
#include <cstdint>

#include "stretto/communicator.hpp"

namespace apps {

// The requests that signals make to a job. SIGTERM and SIGINT ask it to stop behind the current step. Any process of a host
// may get the signal: the ranks, or the parent that has forked them. A second signal, to the same process and more than a
// second later, ends that process at once. (`timeout` and terminals send some processes the same signal twice within
// microseconds.)
//
// A program has one object. It must be made before ranks are forked: the processes share its memory.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Handles the signals from now on, in this process and those that it forks. Until a rank passes `true`, the ranks do not
  // look for a request yet: a signal ends the process that gets it at once.
  void take_signals(bool ranks_look);
  // Returns the signal that any rank, or its parent, has got, or 0. All ranks return the same. Collective. Costs one
  // all-reduce of 8 bytes.
  int agree(const stretto::Communicator& ranks);
  // The signal that a process of this host has got, or 0.
  int asked() const;
  // The last result of agree() on any rank of this host.
  int agreed() const;

  // SIGUSR2, sent to any process, asks for the next layout. Several within a second count once.
  void take_layout_signals();
  // The number of requests for a layout so far; all ranks return the same. Collective. Costs one all-reduce of 8 bytes.
  std::int64_t agree_on_layouts(const stretto::Communicator& ranks);
};

}  // namespace apps
