#pragma once
#include <array>
#include <functional>
#include <utility>

#include "stretto/communicator.hpp"

// Measures how well communication is hidden: the same step is run in four ways and timed. Ratios of intervals on a
// timeline would prove nothing, since communication that slows computation down looks hidden there.
namespace stretto {

enum class Rehearsal {
  full,           // unchanged
  computation,    // collectives and messages are done at once and move nothing
  communication,  // kernels on tensors (stretto/kernels.hpp) return at once and leave their results unchanged
  serial,         // each operation is waited for when it is started
};
STRETTO_API const char* name(Rehearsal rehearsal);

// While the object lives, the calling thread computes and communicates in that way; one scope per thread at a time. All
// ranks must begin and end theirs at the same places. Communicators cannot be made meanwhile. Computed values are
// meaningless, except in full and serial.
class STRETTO_API RehearsalScope {
 public:
  explicit RehearsalScope(Rehearsal rehearsal);
  ~RehearsalScope();
  RehearsalScope(const RehearsalScope&) = delete;
  RehearsalScope& operator=(const RehearsalScope&) = delete;
};

// Seconds per step, of the slowest rank.
struct STRETTO_API OverlapTimes {
  double full = 0, computation = 0, communication = 0, serial = 0;

  // The time that communication adds to computation.
  double exposed() const { return full - computation; }
  // (computation + communication - full) / min(computation, communication). 1: the shorter of the two is hidden
  // entirely; 0: nothing is hidden, or there is nothing to hide.
  double efficiency() const;
  // The figures with their names in JSON: t_full_ms, t_compute_ms, t_comm_ms, t_serial_ms, exposed_ms, efficiency.
  std::array<std::pair<const char*, double>, 6> figures() const;
};

struct OverlapMeasurement {
  int warmup = 1;  // untimed steps before each way; what the last of them leaves to the next step is timed
  int steps = 2;   // timed together, so that what one step leaves to the next is counted in the next
  int rounds = 5;  // of all four ways, in turn; medians are returned
};
// Collective over world: runs `step` in all four ways; all ranks must call the same step. That takes 4 * rounds *
// (warmup + steps) steps. All ranks get the same result.
STRETTO_API OverlapTimes measure_overlap(const Communicator& world, const std::function<void()>& step,
                                         const OverlapMeasurement& how = {});

}  // namespace stretto
