#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

// A clock that costs a few nanoseconds: the processor's counter where that runs evenly, else the monotonic clock. Ticks
// become seconds of now_seconds() later, when somebody asks.
namespace stretto {

// All through sleep states and changes of frequency, and alike on all cores: so says the processor, and the kernel keeps
// time by it.
extern const bool counter_runs_evenly;
std::uint64_t clock_ticks();  // the monotonic clock's nanoseconds

inline std::uint64_t ticks() {
#if defined(__x86_64__)
  if (counter_runs_evenly) return __rdtsc();
#endif
  return clock_ticks();
}

// On the clock of now_seconds(); zero for a beginning of 0. What lies between the two is exact.
struct Span {
  double begin = 0, end = 0;
};
// Looks at the clock once, for many spans that have ended by then; in the first 10 ms of a process that waits for their end.
class TickClock {
 public:
  TickClock();
  Span seconds_of(std::uint64_t begin, std::uint64_t end) const;

 private:
  double seconds_per_tick_;
};
Span seconds_of(std::uint64_t begin, std::uint64_t end);  // for a single one

}  // namespace stretto
