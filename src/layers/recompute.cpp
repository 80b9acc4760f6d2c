#include "stretto/layers/recompute.hpp"

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/device.hpp"

namespace stretto {

void RecomputeOptions::check(int tensor_parallel) const {
  require(!partition || level == Recompute::full,
          "Kept activations are divided only where each block keeps its input alone; choose full recomputation, or do not "
          "divide "
          "them.");
  require(!partition || tensor_parallel > 1,
          "Kept activations cannot be divided over {} tensor-parallel rank; give more ranks, or do not divide them.",
          tensor_parallel);
}

DividedTensor::DividedTensor(const Tensor& whole, const TensorParallel& tensor_parallel, bool divided)
    : tensor_parallel_(tensor_parallel), shape_(whole.shape()) {
  if (!divided || tensor_parallel.size() == 1) {
    share_ = whole_ = whole;
    return;
  }
  const auto [first, count] = share_of(whole.rows(), tensor_parallel.size(), tensor_parallel.rank());
  const Tensor own = whole.view(first * whole.columns(), {count, whole.columns()});
  share_ = Tensor(own.shape(), own.dtype());
  as_kernel("copy", [&] { share_.copy_from(own); });
}

void DividedTensor::gather() {
  if (whole_ || !share_) return;
  const int ranks = tensor_parallel_.size();
  whole_ = Tensor::symmetric(shape_, share_.dtype());
  std::vector<std::int64_t> counts = part_sizes(whole_.rows(), ranks);
  for (std::int64_t& count : counts) count *= whole_.columns();
  const std::int64_t first = share_of(whole_.rows(), ranks, tensor_parallel_.rank()).first;
  const Tensor place = whole_.view(first * whole_.columns(), share_.shape());
  as_kernel("copy", [&] { place.copy_from(share_); });
  share_ = {};
  const Stream& stream = tensor_parallel_.stream;
  stream.wait(computation());  // which copied; a GPU also allocates in its order
  gathered_ = tensor_parallel_.group.start({.collective = Collective::all_gather,
                                            .input = place.raw(),
                                            .output = whole_.raw(),
                                            .dtype = whole_.dtype(),
                                            .counts = std::move(counts),
                                            .keep_alive = whole_},
                                           stream, {.tag = "block input"});
}

Tensor DividedTensor::whole() {
  gather();
  computation().wait(gathered_);
  return whole_;
}

}  // namespace stretto
