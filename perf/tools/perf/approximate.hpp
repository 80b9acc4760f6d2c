#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "perf/cases.hpp"
#include "stretto/quantization.hpp"
#include "stretto/tensor.hpp"

namespace perf {

// NaN is the worst.
inline double worse(double one, double other) { return other > one || std::isnan(other) ? other : one; }

// How far results are from what is exact.
struct Deviation {
  double most = 0;
  double squares = 0;         // summed up ...
  std::int64_t elements = 0;  // ... over so many
};

// What a quantized collective gives: not the exact result, but one within a bound of it that follows from the formats.
class Approximate {
 public:
  // A period of each rank's input, of normal deviates.
  static std::vector<stretto::Tensor> inputs_of(const Case& of, std::uint64_t seed, std::int64_t period);

  // Of the case, only the kind of test, the ranks, the type and the operator matter.
  Approximate(const Case& of, const stretto::Quantization& quantization, const std::vector<stretto::Tensor>& inputs);

  // Compares elements of a result with those of the period from the given one on, of the source that Part tells: how many
  // are beyond the bound.
  std::int64_t compare(int source, std::int64_t from, std::int64_t count, const void* found, Deviation& deviation) const;
  double bound() const { return bound_; }

 private:
  stretto::DType dtype_;
  std::vector<std::vector<double>> exact_;  // of each source; at the end, of what is reduced
  double bound_ = 0;
};

}  // namespace perf
