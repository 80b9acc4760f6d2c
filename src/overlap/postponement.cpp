#include "stretto/overlap/postponement.hpp"

#include <algorithm>

#include "stretto/device.hpp"

namespace stretto {
namespace {

Work mark_in_computation() {
  return computation().enqueue([] {});
}

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

StepTimes least(StepTimes one, const StepTimes& other) {
  one.compute = std::min(one.compute, other.compute);
  for (std::size_t b = 0; b < one.buckets.size(); ++b) {
    for (double BucketTimes::*const number :
         {&BucketTimes::needed, &BucketTimes::ready, &BucketTimes::reduce_scatter, &BucketTimes::gather_gradients,
          &BucketTimes::gather_parameters, &BucketTimes::update}) {
      one.buckets[b].*number = std::min(one.buckets[b].*number, other.buckets[b].*number);
    }
  }
  return one;
}

StepMeasurement::StepMeasurement(std::size_t gradients) : begin_(mark_in_computation()), needed_(gradients) {}

void StepMeasurement::needed(std::size_t gradient) {
  if (!needed_[gradient]) needed_[gradient] = mark_in_computation();
}
void StepMeasurement::computed() { computed_ = mark_in_computation(); }
void StepMeasurement::updated(double seconds) { update_ = seconds; }

StepTimes StepMeasurement::of(const GradientBuckets& buckets, const std::vector<Tensor>& gradients,
                              std::size_t element_bytes) const {
  double all_elements = 0;
  for (const Tensor& gradient : gradients) all_elements += static_cast<double>(gradient.size());
  computed_.wait();  // the earlier marks are then done too
  const double compute = until(computed_);
  StepTimes result{compute, buckets.group().size(), {}};
  std::vector<double> measured{compute};
  std::vector<double> narrower;  // by bucket: bytes of its parameters divided by bytes of its gradients
  for (std::size_t b = 0; b < buckets.bucket_count(); ++b) {
    const GradientBuckets::Times times = buckets.times(b);
    double needed = compute;
    double elements = 0;
    for (const std::size_t member : buckets.members(b)) {
      if (needed_[member]) needed = std::min(needed, until(*needed_[member]));
      elements += static_cast<double>(gradients[member].size());
    }
    const DType dtype = gradients[buckets.members(b).front()].dtype();
    narrower.push_back(static_cast<double>(element_bytes) / static_cast<double>(size_of(dtype)));
    // Communication's times are negated, so that the one max below gives their minimum over the ranks.
    const double update = all_elements > 0 ? update_ * elements / all_elements : 0;
    measured.insert(measured.end(), {needed, times.ready - begin_.times().done, -times.reduce, -times.gather, update});
  }
  if (buckets.group().size() > 1) {
    buckets.group().all_reduce(measured.data(), measured.data(), static_cast<std::int64_t>(measured.size()), DType::f64,
                               ReduceOp::max, Stream::inline_(), {.tag = "times"});
  }
  result.compute = measured[0];
  for (std::size_t b = 0; b < buckets.bucket_count(); ++b) {
    const double* const of = &measured[1 + 5 * b];
    result.buckets.push_back({of[0], of[1], -of[2], -of[3], -of[3] * narrower[b], of[4]});
  }
  return result;
}

void PostponementChoice::begin_step(const GradientBuckets& buckets) {
  if (!is_made() && buckets.knows_order()) step_.emplace(gradients_);
}
void PostponementChoice::needed(std::size_t gradient) {
  if (step_) step_->needed(gradient);
}
void PostponementChoice::computed() {
  if (step_) step_->computed();
}
void PostponementChoice::updated(double seconds) {
  if (step_) step_->updated(seconds);
}

std::optional<std::vector<bool>> PostponementChoice::end_step(const GradientBuckets& buckets,
                                                              const std::vector<Tensor>& gradients) {
  if (!step_) return std::nullopt;
  const StepTimes times = step_->of(buckets, gradients, element_bytes_);
  times_ = times_ ? least(std::move(*times_), times) : times;
  step_.reset();
  ++measured_;
  if (!is_made()) return std::nullopt;
  return best_postponed(*times_);
}

}  // namespace stretto
