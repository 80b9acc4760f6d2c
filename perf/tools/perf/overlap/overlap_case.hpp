#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/planner.hpp"
#include "stretto/overlap/rehearsal.hpp"
#include "stretto/tensor.hpp"

namespace perf {

// How much a step of a case computes and sends.
struct OverlapSizes {
  std::int64_t layers = 16;
  std::int64_t hidden = 512;
  std::int64_t rows = 2048;  // tokens of a rank
  stretto::DType dtype = stretto::DType::f32;
  bool overlap = true;
};

// For how long each layer computes. Told after each of a layer's parts, it takes what has passed since it was told last.
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

// What the planner is to know of a case: its step, layer by layer; the step that runs, and what it does of all that could be
// done.
struct Planned {
  stretto::StepGraph graph;
  stretto::StepGraph running;
  stretto::StepKnobs knobs;
};

// A training step, or its part, with real matrix products, in which one of the library's ways to overlap does its work.
class OverlapCase {
 public:
  virtual ~OverlapCase() = default;
  virtual void step() = 0;
  // So many steps learn and measure something first, and may do what later ones do not.
  virtual int steps_to_settle() const { return 1; }
  // Until nothing is under way that a step has left behind.
  virtual void finish() {}
  // What steps have changed, back as it was in the beginning.
  virtual void reset() = 0;
  // All that steps have computed, which no way of running may change; what is under way has been finished.
  virtual std::vector<stretto::Tensor> results() const = 0;

  // Nothing where the planner has no graph of it. clock(): of the steps since it was cleared, in which nothing was
  // communicated.
  virtual LayerClock* clock() { return nullptr; }
  virtual std::optional<Planned> planned() const { return std::nullopt; }
  // Does what the planner says from now on. Collective.
  virtual void use(const stretto::StepSchedule&) {}
};

// Collective over world: of a few steps and all that they leave to be finished, run in one way.
constexpr int timed_steps = 3;
double seconds_per_step(const stretto::Communicator& world, OverlapCase& what, stretto::Rehearsal way);

std::vector<std::string> overlap_cases();
// Collective. Throws in one sentence where the sizes do not fit the ranks.
std::unique_ptr<OverlapCase> make_overlap_case(const std::string& name, const stretto::Communicator& world,
                                               const OverlapSizes& sizes);

}  // namespace perf
