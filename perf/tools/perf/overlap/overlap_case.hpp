#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/rehearsal.hpp"
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

// A training step, or a part of one, with real matrix products, whose communication one facility of the library overlaps.
class OverlapCase {
 public:
  virtual ~OverlapCase() = default;
  virtual void step() = 0;
  // Waits for all operations that steps have left in flight.
  virtual void finish() {}
  // Restores the initial state of everything that steps change.
  virtual void reset() = 0;
  // All results of the steps, which must not depend on the rehearsal. Called after finish().
  virtual std::vector<stretto::Tensor> results() const = 0;
};

// Seconds a step of a few steps, including the operations that they leave in flight, under one rehearsal. Collective over
// world.
double seconds_per_step(const stretto::Communicator& world, OverlapCase& overlap_case, stretto::Rehearsal rehearsal);

std::vector<std::string> overlap_cases();
// Collective. Throws in one sentence if the sizes do not fit the ranks.
std::unique_ptr<OverlapCase> make_overlap_case(const std::string& name, const stretto::Communicator& world,
                                               const OverlapSizes& sizes);

}  // namespace perf
