#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/checkpoint/state_tensors.hpp"

namespace stretto {

// Throws Error(io) if a number in host memory, f64 or f32, that was read from a file or directory is infinite or NaN.
void require_finite(const Tensor& values, const std::string& name, const std::string& from);

// The states of an optimizer as files see them: a parameter's undivided tensor, of which each rank updates some ranges. Both
// arguments must outlive the object.
class WholeState {
 public:
  WholeState(const ShardedParameters& parameters, const AdamWOptimizer& optimizer);

  // The undivided tensor of a parameter's state in host memory, valid at rank 0. Collective: each rank adds the bits of what
  // it owns to zeros, which needs no knowledge of what the others own.
  Tensor gather(const Parameter& parameter, StateTensor which) const;

  // Sets what this rank updates of a parameter to value_at(index in the undivided tensor), of `name` in the file `from`.
  // Throws as require_finite().
  void set(const Parameter& parameter, StateTensor which, const std::function<double(std::int64_t)>& value_at,
           const std::string& name, const std::string& from) const;

  DType dtype() const;

 private:
  const ShardedParameters& parameters_;
  const AdamWOptimizer& optimizer_;
  std::vector<std::vector<std::size_t>> ranges_;  // indices of the ranges of each parameter
};

}  // namespace stretto
