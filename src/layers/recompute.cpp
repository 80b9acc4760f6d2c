#include "stretto/layers/recompute.hpp"

#include "core/fail.hpp"
#include "stretto/device.hpp"

namespace stretto {

const char* name(Recompute level) {
  return level == Recompute::none ? "none" : level == Recompute::selective ? "selective" : "full";
}

void RecomputeOptions::check(const TensorParallel& tensor_parallel) const {
  require(!partition || level == Recompute::full,
          "Kept activations are divided only where each block keeps its input alone; choose full recomputation, or do not "
          "divide "
          "them.");
  require(!partition || tensor_parallel.size() > 1,
          "Kept activations cannot be divided over {} tensor-parallel rank; give more ranks, or do not divide them.",
          tensor_parallel.size());
  require(
      !partition || !tensor_parallel.divides_rows,
      "Sequence parallelism over {} ranks divides each block's kept input already; leave the division of kept activations "
      "out.",
      tensor_parallel.size());
  require(
      directory.empty() || (level == Recompute::full && !partition),
      "Kept activations lie in {} only where each block keeps its whole input and nothing else; choose full recomputation "
      "without a division.",
      directory);
  require(directory.empty() || current_device() == Device::cpu,
          "Kept activations lie in {} on the host only, not on a GPU; leave the offload out.", directory);
  require(level != Recompute::selective || !tensor_parallel.keeps_gathered,
          "Selective recomputation drops the norms' results, so that nothing gathered from them can be kept; choose one.");
}

}  // namespace stretto
