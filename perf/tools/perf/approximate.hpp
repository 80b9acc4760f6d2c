#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "perf/cases.hpp"
#include "stretto/quantization.hpp"
#include "stretto/tensor.hpp"

namespace perf {

// NaN counts as the worst.
inline double worse(double one, double other) { return other > one || std::isnan(other) ? other : one; }

// The distance of results from the exact ones.
struct Deviation {
  double most = 0;
  double squares = 0;         // sum of the squared errors ...
  std::int64_t elements = 0;  // ... over this number of elements
};

// The expected result of a quantized collective: within a bound of the exact result that follows from the formats.
class Approximate {
 public:
  // A period of each rank's input: normal deviates.
  static std::vector<stretto::Tensor> inputs_of(const Case& test_case, std::uint64_t seed, std::int64_t period);

  // Uses only the case's kind of test, ranks, type and operator.
  Approximate(const Case& test_case, const stretto::Quantization& quantization, const std::vector<stretto::Tensor>& inputs);

  // Compares elements of a result with those of the source's period from `from` on; returns the number beyond the bound.
  std::int64_t compare(int source, std::int64_t from, std::int64_t count, const void* found, Deviation& deviation) const;
  double bound() const { return bound_; }

 private:
  stretto::DType dtype_;
  std::vector<std::vector<double>> exact_;  // one for each source; the reduction of all comes last
  double bound_ = 0;
};

}  // namespace perf
