#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "perf/approximate.hpp"
#include "perf/cases.hpp"
#include "stretto/tensor.hpp"

// The contents of all ranks' inputs, and what must come out, in host memory. Results are exact, so that they are compared
// bit for bit: floating-point inputs are small integers whose sums, in any order and partial ones too, are integers that the
// type holds (8-bit floats: up to 16 or 8; where there are more ranks than that, some give zero); products are of +-1 and a
// few +-2; averages are such sums, divided and rounded once. Integers take all values where they may wrap. What is only
// moved is random bits. Only where the library quantizes, inputs are normal deviates, and results are held against a bound.
namespace perf {

class Values {
 public:
  // Of the case, only the kind of test, the ranks, the type and the operator matter.
  Values(const Case& of, std::uint64_t seed, const stretto::Quantization& quantization = {});

  // Elements [first, first + count) of a rank's input, or of Part::reduced.
  void fill(const Part& part, void* to) const;
  // How many of them are not what a buffer holds.
  std::int64_t wrong(const Part& part, const void* found) const;
  // The same of a result, which may differ where the library quantizes: that is added to the deviation.
  std::int64_t wrong_results(const Part& part, const void* found, Deviation& deviation) const;

  // What a rank's contribution to a premultiplied sum is multiplied by.
  static double factor(int rank) { return 1 + rank % 2; }

 private:
  // Inputs repeat after that many elements: a prime, so that no cut of a buffer that an algorithm makes is mistaken for
  // another.
  static constexpr std::int64_t period = 4099;

  template <class Byte, class Visit>
  void for_each_run(const Part& part, Byte* at, Visit visit) const;
  const std::byte* pattern(int source) const;

  stretto::DType dtype_;
  std::vector<stretto::Tensor> inputs_;
  stretto::Tensor reduced_;
  std::optional<Approximate> approximate_;
};

}  // namespace perf
