#pragma once
#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "stretto/communicator.hpp"

// Measures how well communication is hidden: the same step is run and timed in four ways. A timeline cannot show this,
// because communication that slows computation down looks hidden on a timeline.
namespace stretto {

enum class Rehearsal {
  full,           // unchanged
  computation,    // collectives and messages return at once and move no data
  communication,  // kernels on tensors (stretto/kernels.hpp) return at once and leave their results unchanged
  serial,         // the calling thread waits for each operation when it starts the operation
};
STRETTO_API const char* name(Rehearsal rehearsal);

// While the object lives, the calling thread computes and communicates in the given way, and afterwards as before. All ranks
// must construct and destroy their scopes at the same places in their order of operations, and must not make communicators
// in between. Computed values are meaningless, except in full and serial.
class STRETTO_API RehearsalScope {
 public:
  explicit RehearsalScope(Rehearsal rehearsal);
  ~RehearsalScope();
  RehearsalScope(const RehearsalScope&) = delete;
  RehearsalScope& operator=(const RehearsalScope&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

// Seconds per step, of the slowest rank.
struct STRETTO_API OverlapTimes {
  double full = 0, computation = 0, communication = 0, serial = 0;

  // The time that communication adds to computation.
  double exposed() const { return full - computation; }
  // (computation + communication - full) / min(computation, communication). 1 means that the shorter of computation and
  // communication is hidden entirely; 0 means that nothing is hidden, or that there is nothing to hide.
  double efficiency() const;
  // The figures with their names in JSON: t_full_ms, t_compute_ms, t_comm_ms, t_serial_ms, exposed_ms, efficiency.
  std::array<std::pair<const char*, double>, 6> figures() const;
};

struct OverlapMeasurement {
  // Number of untimed steps before each timed run, at least 1. Work that the last of them leaves to the next step is
  // timed.
  int warmup = 1;
  int steps = 2;   // number of steps per timed run. Work that a step leaves to the next step is timed with the next step
  int rounds = 5;  // number of rounds over the four ways. The result is the median over the rounds
};
// Runs `step` in all four ways, 4 * rounds * (warmup + steps) times in total. Collective over world: all ranks must pass
// the same step. All ranks get the same result.
STRETTO_API OverlapTimes measure_overlap(const Communicator& world, const std::function<void()>& step,
                                         const OverlapMeasurement& how = {});

}  // namespace stretto
