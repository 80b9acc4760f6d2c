#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// Throws Error(io) if a number in host memory that was read from a file or directory is infinite or NaN.
void require_finite(const Tensor& values, const std::string& name, const std::string& from);

// The master weights of an optimizer as files see them: a parameter's undivided tensor, of which each rank updates some
// ranges. Both arguments must outlive the object.
class WholeValues {
 public:
  WholeValues(const ShardedParameters& parameters, const Optimizer& optimizer);

  // The undivided tensor of a parameter, of all records of a divided one, in host memory, in the accumulator type, valid at
  // rank 0. Collective: each rank adds the bits of what it owns to zeros, which needs no knowledge of what the others own.
  Tensor gather(const Parameter& parameter) const;

  // Sets what this rank updates of a record. fill() writes the elements of a range, in host memory, from the tensors
  // `name` of the file `from`. Throws as require_finite().
  using Fill = std::function<void(const ShardedParameters::Range& range, const Tensor& values)>;
  void set(const Parameter& parameter, const Fill& fill, const std::string& name, const std::string& from) const;

 private:
  // Copies the elements of a record that this rank owns to their places in the whole parameter.
  void copy_own(const Parameter& record, const Tensor& whole) const;

  const ShardedParameters& parameters_;
  const Optimizer& optimizer_;
  std::vector<std::vector<std::size_t>> ranges_;  // indices of the ranges of each parameter
};

}  // namespace stretto
