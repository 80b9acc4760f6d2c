#include "stretto/layers/recompute.hpp"

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "stretto/device.hpp"

namespace stretto {

void RecomputeOptions::check(int tensor_parallel) const {
  require(
      !partition || level == Recompute::full,
      "Kept activations are divided only where each block keeps its input alone; recompute fully, or do not divide them.");
  require(!partition || tensor_parallel > 1,
          "Kept activations cannot be divided over {} tensor-parallel rank; give more ranks, or do not divide them.",
          tensor_parallel);
}

DividedTensor::DividedTensor(const Tensor& whole, const TensorParallel& tensor_parallel, bool divided)
    : tensor_parallel_(tensor_parallel), shape_(whole.shape()) {
  const Communicator& group = tensor_parallel.group;
  if (!divided || group.size() == 1) {
    share_ = whole_ = whole;
    return;
  }
  const auto [first, count] = share_of(whole.rows(), group.size(), group.rank());
  share_ = whole.view(first * whole.columns(), {count, whole.columns()}).clone();
}

void DividedTensor::gather() {
  if (whole_ || !share_) return;
  const Communicator& group = tensor_parallel_.group;
  whole_ = Tensor::symmetric(shape_, share_.dtype());
  std::vector<std::int64_t> counts = part_sizes(whole_.rows(), group.size());
  for (std::int64_t& count : counts) count *= whole_.columns();
  const Stream& stream = tensor_parallel_.stream;
  stream.wait(computation());  // which computed the share; a GPU also allocates in its order
  gathered_ = group.all_gather_v(share_.raw(), whole_.raw(), counts, whole_.dtype(), stream, {.tag = "block input"});
}

Tensor DividedTensor::whole() {
  gather();
  computation().wait(gathered_);
  return whole_;
}

}  // namespace stretto
