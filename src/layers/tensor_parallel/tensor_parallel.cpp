#include "stretto/layers/tensor_parallel.hpp"

#include <functional>
#include <numeric>
#include <tuple>

#include "core/parts.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

std::vector<std::int64_t> elements_of_ranks(const Shape& shape, int ranks) {
  std::vector<std::int64_t> counts = part_sizes(shape.front(), ranks);
  for (std::int64_t& count : counts) count *= shape.back();
  return counts;
}

}  // namespace

std::vector<std::int64_t> TensorParallel::rows_of_ranks(std::int64_t rows) const {
  return has_own_rows() ? part_sizes(rows, size()) : std::vector<std::int64_t>(static_cast<std::size_t>(size()), rows);
}

Tensor TensorParallel::own_rows(const Tensor& of_all) const {
  Shape shape = of_all.shape();
  const auto [first, count] = own_rows(shape.front());
  const std::int64_t row = std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
  shape.front() = count;
  return of_all.view(first * row, shape);
}

Tensor TensorParallel::tensor_to_sum(Shape shape, DType dtype) const {
  return size() > 1 ? Tensor::symmetric(shape, dtype) : Tensor(shape, dtype);
}

void TensorParallel::sum(const Tensor& tensor, const char* tag) const {
  if (size() > 1) std::ignore = group.all_reduce(tensor, ReduceOp::sum, computation(), {.tag = tag});
}

Work TensorParallel::start_sum(const Tensor& tensor, const char* tag) const {
  if (size() == 1) return {};
  return group.all_reduce(tensor, ReduceOp::sum, stream, {.tag = tag});
}

Tensor TensorParallel::sum_own_rows(const Tensor& tensor, const char* tag) const {
  if (!has_own_rows()) {
    sum(tensor, tag);
    return tensor;
  }
  Tensor own = tensor_to_sum({own_rows(tensor.rows()).count, tensor.columns()}, tensor.dtype());
  std::ignore = group.reduce_scatter_v(tensor, own, elements_of_ranks({tensor.rows(), tensor.columns()}, size()),
                                       ReduceOp::sum, computation(), {.tag = tag});
  return own;
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

DividedTensor DividedTensor::of_share(const Tensor& share, std::int64_t rows, const TensorParallel& tensor_parallel,
                                      const char* tag) {
  DividedTensor result;
  result.tensor_parallel_ = tensor_parallel;
  result.tag_ = tag;
  result.shape_ = {rows, share.columns()};
  result.share_ = share;
  if (tensor_parallel.size() == 1) result.whole_ = share;
  return result;
}

void DividedTensor::gather() {
  if (whole_ || !share_) return;
  const int ranks = tensor_parallel_.size();
  whole_ = Tensor::symmetric(shape_, share_.dtype());
  const std::int64_t first = share_of(whole_.rows(), ranks, tensor_parallel_.rank()).first;
  const Tensor place = whole_.view(first * whole_.columns(), share_.shape());
  as_kernel("copy", [&] { place.copy_from(share_); });
  share_ = {};
  const Stream& stream = tensor_parallel_.stream;
  stream.wait(computation());  // which copied; a GPU also allocates in its order
  gathered_ = tensor_parallel_.group.all_gather_v(place, whole_, elements_of_ranks({whole_.rows(), whole_.columns()}, ranks),
                                                  stream, {.tag = tag_});
}

Tensor DividedTensor::whole() {
  gather();
  computation().wait(gathered_);
  return whole_;
}

}  // namespace stretto
