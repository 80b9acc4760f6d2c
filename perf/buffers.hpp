#pragma once
#include <cstdint>
#include <vector>

#include "cases.hpp"
#include "stretto/tensor.hpp"
#include "values.hpp"

namespace perf {

// One rank's input and output of a case, each between two guards, in several copies that take turns so that a small message
// is not always found in the same cache lines.
class Buffers {
 public:
  Buffers(const Case& of, int rank, bool in_place, int copies);

  int copies() const { return copies_; }
  bool in_place() const { return in_place_; }
  const void* input(int copy) const { return at(copy, input_at_); }
  void* output(int copy) const { return at(copy, output_at_); }

  // Writes everything anew: inputs, guards, and nonsense where results go.
  void fill(const Values& values) const;
  // Wrong elements of the outputs, changed elements of inputs (out of place, or where there is no output) and changed guard
  // bytes, over all copies.
  std::int64_t wrong(const Values& values) const;

 private:
  struct Region {  // of a copy, in bytes from its beginning; guards lie before and behind
    std::int64_t first = 0;
    std::int64_t bytes = 0;
  };

  std::byte* at(int copy, std::int64_t offset) const;

  Case case_;
  int rank_;
  bool in_place_;
  int copies_;
  std::vector<Region> regions_;
  std::int64_t input_at_ = 0, output_at_ = 0;
  std::int64_t copy_bytes_ = 0;
  stretto::Tensor memory_;
};

}  // namespace perf
