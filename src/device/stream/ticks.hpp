#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

// A clock that costs a few nanoseconds: the processor's time-stamp counter where that runs evenly, else the monotonic clock.
// Ticks are converted to seconds of now_seconds() later, on request.
namespace stretto {

// Whether the counter runs at one rate through sleep states and changes of frequency, alike on all cores: the processor says
// so, and Linux uses it as its clock source.
extern const bool counter_runs_evenly;
std::uint64_t clock_ticks();  // the monotonic clock's nanoseconds

inline std::uint64_t ticks() {
#if defined(__x86_64__)
  if (counter_runs_evenly) return __rdtsc();
#endif
  return clock_ticks();
}

// On the clock of now_seconds(); both are zero if the beginning was 0 ticks. Their difference is exact.
struct Span {
  double begin = 0, end = 0;
};
// Reads the clock once, for any number of spans that have ended by then. In the first 10 ms of a process, the constructor
// blocks until they are over.
class TickClock {
 public:
  TickClock();
  Span seconds_of(std::uint64_t begin, std::uint64_t end) const;

 private:
  double seconds_per_tick_;
};
Span seconds_of(std::uint64_t begin, std::uint64_t end);  // for a single span

}  // namespace stretto
