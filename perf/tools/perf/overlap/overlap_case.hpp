#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/rehearsal.hpp"
#include "stretto/planning/planner.hpp"
#include "stretto/tensor.hpp"

namespace perf {

// The size of a case's step.
struct OverlapSizes {
  std::int64_t layers = 16;
  std::int64_t hidden = 512;
  std::int64_t rows = 2048;  // tokens a rank
  stretto::DType dtype = stretto::DType::f32;
  bool overlap = true;
};

// Measures the computing time of each layer. lap() adds the time since the last lap() to a layer's phase.
class LayerClock {
 public:
  explicit LayerClock(std::int64_t layers) : sums_(static_cast<std::size_t>(layers)) {}
  void step() {
    ++steps_;
    last_ = stretto::now_seconds();
  }
  void lap(std::size_t layer, stretto::Phase phase) {
    const double now = stretto::now_seconds();
    stretto::LayerSeconds& sum = sums_[layer];
    (phase == stretto::Phase::forward    ? sum.forward
     : phase == stretto::Phase::backward ? sum.backward
                                         : sum.update) += now - last_;
    last_ = now;
  }
  void clear() { *this = LayerClock(static_cast<std::int64_t>(sums_.size())); }
  std::vector<stretto::LayerSeconds> per_step() const {
    std::vector<stretto::LayerSeconds> means = sums_;
    for (stretto::LayerSeconds& mean : means) {
      mean.forward /= steps_;
      mean.backward /= steps_;
      mean.update /= steps_;
    }
    return means;
  }

 private:
  std::vector<stretto::LayerSeconds> sums_;
  double last_ = 0;
  int steps_ = 0;
};

// A case in the planner's terms: the step layer by layer, the step as it runs now, and the knobs by which it runs.
struct Planned {
  stretto::StepGraph graph;
  stretto::StepGraph running;
  stretto::StepKnobs knobs;
};

// A training step, or a part of one, with real matrix products, whose communication one facility of the library overlaps.
class OverlapCase {
 public:
  virtual ~OverlapCase() = default;
  virtual void step() = 0;
  // The number of first steps that learn and measure, and may communicate differently from later ones.
  virtual int steps_to_settle() const { return 1; }
  // Waits for all operations that steps have left in flight.
  virtual void finish() {}
  // Restores the initial state of everything that steps change.
  virtual void reset() = 0;
  // All results of the steps, which must not depend on the rehearsal. Called after finish().
  virtual std::vector<stretto::Tensor> results() const = 0;

  // Empty if the planner has no graph of the case. clock() must hold only steps that communicated nothing.
  virtual LayerClock* clock() { return nullptr; }
  virtual std::optional<Planned> planned() const { return std::nullopt; }
  // Follows the planner's schedule from now on. Collective.
  virtual void use(const stretto::StepSchedule&) {}
};

// Seconds a step of a few steps, including the operations that they leave in flight, under one rehearsal. Collective over
// world.
constexpr int timed_steps = 3;
double seconds_per_step(const stretto::Communicator& world, OverlapCase& overlap_case, stretto::Rehearsal rehearsal);

std::vector<std::string> overlap_cases();
// Collective. Throws in one sentence if the sizes do not fit the ranks.
std::unique_ptr<OverlapCase> make_overlap_case(const std::string& name, const stretto::Communicator& world,
                                               const OverlapSizes& sizes);

}  // namespace perf
