#include "overlap/postponement.hpp"

#include <algorithm>
#include <cstddef>

namespace stretto {
namespace {

// Cuts the buckets into runs of neighbours of nearly equal length; returns where each run begins, then the end of the last.
std::vector<std::size_t> runs_of(std::size_t buckets) {
  constexpr std::size_t most = 64;  // the search evaluates O(runs^2) steps, inside a step of training
  const std::size_t runs = std::min(buckets, most);
  std::vector<std::size_t> begins{0};
  for (std::size_t run = 1; run <= runs; ++run) begins.push_back(run * buckets / runs);
  return begins;
}

// The seconds that forward waits for gathers that start when forward does.
double forward_waits(const StepTimes& times, const std::vector<bool>& postponed) {
  double link = 0;
  double waited = 0;
  for (std::size_t b = times.buckets.size(); b-- > 0;) {
    if (!postponed[b]) continue;
    link += times.buckets[b].gather_parameters;
    waited += std::max(0.0, link - (times.buckets[b].needed + waited));
  }
  return waited;
}

double sums_end(const StepTimes& times, const std::vector<bool>& postponed) {
  double link = 0;
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    const BucketTimes& bucket = times.buckets[b];
    link = std::max(link, bucket.ready) + bucket.reduce_scatter + (postponed[b] ? 0 : bucket.gather_gradients);
  }
  return link;
}

double update_seconds(const StepTimes& times, const std::vector<bool>& postponed) {
  double seconds = 0;
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    seconds += times.buckets[b].update / (postponed[b] ? times.ranks : 1);
  }
  return seconds;
}

}  // namespace

double step_seconds(const StepTimes& times, const std::vector<bool>& postponed) {
  return forward_waits(times, postponed) + std::max(times.compute, sums_end(times, postponed)) +
         update_seconds(times, postponed);
}

std::vector<bool> best_postponed(const StepTimes& times) {
  constexpr double worth = 1e-9;  // a gain of a smaller part of the step is rounding
  const auto position = [](std::vector<bool>& flags, std::size_t at) {
    return flags.begin() + static_cast<std::ptrdiff_t>(at);
  };
  const std::vector<std::size_t> begins = runs_of(times.buckets.size());
  std::vector<bool> best(times.buckets.size(), false);
  double shortest = step_seconds(times, best);
  while (true) {
    const std::vector<bool> before = best;
    for (std::size_t run = 0; run + 1 < begins.size(); ++run) {
      if (before[begins[run]]) continue;
      std::vector<bool> trial = before;
      std::fill(position(trial, begins[run]), position(trial, begins[run + 1]), true);
      const double seconds = step_seconds(times, trial);
      if (seconds >= shortest * (1 - worth)) continue;
      shortest = seconds;
      best = trial;
    }
    if (best == before) return best;
  }
}

}  // namespace stretto
