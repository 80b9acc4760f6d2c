#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/tensor.hpp"

namespace perf {

// How much a step of a case computes and sends.
struct OverlapSizes {
  std::int64_t layers = 24;
  std::int64_t hidden = 512;
  std::int64_t rows = 4096;  // tokens of a rank
  stretto::DType dtype = stretto::DType::f32;
  bool overlap = true;
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
};

std::vector<std::string> overlap_cases();
// Collective. Throws in one sentence where the sizes do not fit the ranks.
std::unique_ptr<OverlapCase> make_overlap_case(const std::string& name, const stretto::Communicator& world,
                                               const OverlapSizes& sizes);

}  // namespace perf
