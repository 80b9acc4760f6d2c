#include "device/stream/ticks.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "stretto/stream.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace stretto {
namespace {

// Linux uses another clock source if it has found the cores' counters to differ.
bool can_trust_counter() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool invariant = __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 8 & 1U) != 0;
  std::string source;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
  return invariant && (source == "tsc" || source == "kvm-clock");
#else
  return false;
#endif
}

struct Anchor {
  std::uint64_t ticks;
  double seconds;
};
// The closest pair of several tries: a thread may lose its core between two readings.
Anchor look() {
  Anchor best{};
  std::uint64_t narrowest = ~std::uint64_t{0};
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t before = ticks();
    const double seconds = now_seconds();
    const std::uint64_t after = ticks();
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    best = {before + narrowest / 2, seconds};
  }
  return best;
}

}  // namespace

const bool counter_runs_evenly = can_trust_counter();
namespace {
const Anchor first = look();

// Measured from the start of the process until now: the longer that is, the less the error of one reading matters.
double seconds_per_tick() {
  if (!counter_runs_evenly) return 1e-9;
  Anchor now = look();
  while (now.seconds - first.seconds < 0.01) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    now = look();
  }
  return (now.seconds - first.seconds) / static_cast<double>(now.ticks - first.ticks);
}
}  // namespace

std::uint64_t clock_ticks() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

TickClock::TickClock() : seconds_per_tick_(seconds_per_tick()) {}

Span TickClock::seconds_of(std::uint64_t begin, std::uint64_t end) const {
  if (begin == 0) return {};
  const auto seconds = [&](std::uint64_t from, std::uint64_t to) {
    return static_cast<double>(static_cast<std::int64_t>(to - from)) * seconds_per_tick_;
  };
  const double at = first.seconds + seconds(first.ticks, begin);
  return {at, at + std::max(0.0, seconds(begin, end))};  // the counters of two cores may differ by a few ticks
}

Span seconds_of(std::uint64_t begin, std::uint64_t end) { return begin == 0 ? Span{} : TickClock().seconds_of(begin, end); }

}  // namespace stretto
