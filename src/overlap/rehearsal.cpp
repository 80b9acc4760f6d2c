#include "stretto/overlap/rehearsal.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "core/fail.hpp"
#include "device/rehearsal_mode.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

constexpr std::array rehearsals = {Rehearsal::full, Rehearsal::computation, Rehearsal::communication, Rehearsal::serial};

RehearsalMode mode_of(Rehearsal rehearsal) {
  return {.skip_kernels = rehearsal == Rehearsal::communication,
          .skip_communication = rehearsal == Rehearsal::computation,
          .no_overlap = rehearsal == Rehearsal::serial};
}

double slowest(const Communicator& world, double seconds) {
  world.all_reduce(&seconds, &seconds, 1, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "rehearsal"}).wait();
  return seconds;
}

double seconds_per_step(const Communicator& world, Rehearsal rehearsal, const std::function<void()>& step,
                        const OverlapMeasurement& how) {
  world.barrier(Stream::inline_()).wait();
  double seconds = 0;
  {
    const RehearsalScope scope(rehearsal);
    for (int i = 0; i < how.warmup; ++i) step();
    computation().synchronize();
    // No barrier here: it would wait for work that a step leaves to the next. The last timed step leaves as much of it as
    // the last warmup step did.
    const double from = now_seconds();
    for (int i = 0; i < how.steps; ++i) step();
    computation().synchronize();
    seconds = now_seconds() - from;
  }
  return slowest(world, seconds / how.steps);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace

const char* name(Rehearsal rehearsal) {
  switch (rehearsal) {
    case Rehearsal::full: return "full";
    case Rehearsal::computation: return "computation";
    case Rehearsal::communication: return "communication";
    case Rehearsal::serial: return "serial";
  }
  return "unknown";
}

struct RehearsalScope::Before {
  RehearsalModeScope mode;
};
RehearsalScope::RehearsalScope(Rehearsal rehearsal) : before_(new Before{RehearsalModeScope(mode_of(rehearsal))}) {}
RehearsalScope::~RehearsalScope() = default;

double OverlapTimes::efficiency() const {
  const double shorter = std::min(computation, communication);
  return shorter > 0 ? (computation + communication - full) / shorter : 0;
}

std::array<std::pair<const char*, double>, 6> OverlapTimes::figures() const {
  return {{{"t_full_ms", full * 1e3},
           {"t_compute_ms", computation * 1e3},
           {"t_comm_ms", communication * 1e3},
           {"t_serial_ms", serial * 1e3},
           {"exposed_ms", exposed() * 1e3},
           {"efficiency", efficiency()}}};
}

OverlapTimes measure_overlap(const Communicator& world, const std::function<void()>& step, const OverlapMeasurement& how) {
  // Work that a step leaves to the next is timed in the next, so an untimed step must come before the first timed one.
  require(how.warmup >= 1 && how.steps >= 1 && how.rounds >= 1,
          "{} rounds of {} steps behind {} cannot be measured; give at least 1 round, 1 step and 1 before them.", how.rounds,
          how.steps, how.warmup);
  std::array<std::vector<double>, rehearsals.size()> seconds;
  for (int round = 0; round < how.rounds; ++round) {
    for (std::size_t i = 0; i < rehearsals.size(); ++i)
      seconds[i].push_back(seconds_per_step(world, rehearsals[i], step, how));
  }
  return {median(seconds[0]), median(seconds[1]), median(seconds[2]), median(seconds[3])};
}

}  // namespace stretto
