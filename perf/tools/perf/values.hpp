#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "perf/approximate.hpp"
#include "perf/cases.hpp"
#include "stretto/tensor.hpp"

// The contents of all ranks' inputs, and the expected results, in host memory. Results are exact, so that they are compared
// bit for bit. Floating-point inputs are small integers whose sums, also partial ones in any order, are integers that the
// type holds (8-bit floats: up to 16 or 8; if there are more ranks than that, some give zero). Factors of products are +-1
// and a few +-2. Averages are such sums, divided and rounded once. Integers take all values if they may wrap. Collectives
// that only move data get random bits. If the library quantizes, inputs are normal deviates, and results must lie within a
// bound.
namespace perf {

class Values {
 public:
  // Uses only the case's kind of test, ranks, type and operator.
  Values(const Case& test_case, std::uint64_t seed, const stretto::Quantization& quantization = {});

  // Writes elements [first, first + count) of a rank's input, or of SourceRange::reduced.
  void fill(const SourceRange& part, void* to) const;
  // The number of elements in which a buffer differs from them.
  std::int64_t wrong(const SourceRange& part, const void* found) const;
  // The same for a result. If the library quantizes, elements beyond the bound count as wrong, and all errors are added to
  // the deviation.
  std::int64_t wrong_results(const SourceRange& part, const void* found, Deviation& deviation) const;

  // The factor of a rank's contribution to a premultiplied sum.
  static double factor(int rank) { return 1 + rank % 2; }

 private:
  // Inputs repeat after this many elements: a prime, so that no two parts into which an algorithm cuts a buffer are equal.
  static constexpr std::int64_t period = 4099;

  template <class Byte, class Visit>
  void for_each_run(const SourceRange& part, Byte* at, Visit visit) const;
  const std::byte* pattern(int source) const;

  stretto::DType dtype_;
  std::vector<stretto::Tensor> inputs_;
  stretto::Tensor reduced_;
  std::optional<Approximate> approximate_;
};

}  // namespace perf
