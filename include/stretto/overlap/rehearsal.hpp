#pragma once
#include <array>
#include <functional>
#include <utility>

#include "stretto/communicator.hpp"

// The proof of overlap is a measurement: the same step, run four ways. Ratios of intervals on a timeline prove nothing,
// since communication that slows computation down looks hidden there.
namespace stretto {

enum class Rehearsal {
  full,           // as it is
  computation,    // collectives and messages are done at once and move nothing
  communication,  // kernels on tensors (stretto/kernels.hpp) return at once and leave their results as they were
  serial,         // whoever starts an operation waits for it
};
STRETTO_API const char* name(Rehearsal rehearsal);

// Holds for what the calling thread computes and starts while it lives, one at a time. All ranks begin and end theirs in the
// same places. Communicators cannot be made meanwhile, and what is computed is worthless, but for full and serial.
class STRETTO_API RehearsalScope {
 public:
  explicit RehearsalScope(Rehearsal rehearsal);
  ~RehearsalScope();
  RehearsalScope(const RehearsalScope&) = delete;
  RehearsalScope& operator=(const RehearsalScope&) = delete;
};

// Seconds of a step, the slowest rank's.
struct STRETTO_API OverlapTimes {
  double full = 0, computation = 0, communication = 0, serial = 0;

  // What communication adds to computation.
  double exposed() const { return full - computation; }
  // 1: the shorter one of the two is hidden entirely; 0: nothing is. 0 where there is nothing to hide.
  double efficiency() const;
  // Under the names that they have in JSON: t_full_ms, t_compute_ms, t_comm_ms, t_serial_ms, exposed_ms, efficiency.
  std::array<std::pair<const char*, double>, 6> figures() const;
};

struct OverlapMeasurement {
  int warmup = 1;  // steps before each way of running, not timed but for what the last of them leaves to the next step
  int steps = 2;   // timed together, so that what one step leaves to the next is counted where it comes to pass
  int rounds = 5;  // of all four ways, in turn; the median counts
};
// Collective over world: runs step, which all ranks call alike, in all four ways. Takes 4 rounds (warmup + steps) steps. The
// same on every rank.
STRETTO_API OverlapTimes measure_overlap(const Communicator& world, const std::function<void()>& step,
                                         const OverlapMeasurement& how = {});

}  // namespace stretto
