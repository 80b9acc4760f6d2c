#include "stretto/layers/zero.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/fail.hpp"
#include "stretto/device.hpp"

namespace stretto {

namespace {

std::int64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}
std::int64_t divided_up(std::int64_t count, std::int64_t parts) { return (count + parts - 1) / parts; }

}  // namespace

ZeroUnit::ZeroUnit(Communicator group, std::vector<Shape> shapes, DType dtype, DType gradient_dtype, const Options& options)
    : group_(std::move(group)),
      reduce_group_(options.reduce_group ? options.reduce_group : group_),
      shapes_(std::move(shapes)),
      options_(options) {
  require(group_ && !shapes_.empty(), "A unit of {} tensors over {} ranks has nothing to gather; give at least one of each.",
          shapes_.size(), group_ ? group_.size() : 0);
  require(
      reduce_group_.size() == group_.size() && reduce_group_.rank() == group_.rank(),
      "Gradients of a unit over {} ranks cannot be reduced over {}, where rank {} is rank {}; give a communicator of the "
      "same ranks.",
      group_.size(), reduce_group_.size(), group_.rank(), reduce_group_.rank());
  std::int64_t total = 0;
  for (const Shape& shape : shapes_) total += elements_of(shape);
  const std::int64_t share = divided_up(total, group_.size());
  // Refuses here what the first gather or reduce_scatter would refuse.
  group_.check({.collective = Collective::all_gather, .count = share, .dtype = dtype},
               quantized(options_.weights, options_.gather_by, ""));
  group_.check({.collective = Collective::reduce_scatter, .count = share, .dtype = gradient_dtype, .op = ReduceOp::avg},
               quantized(options_.gradients, options_.reduce_by, ""));
  share_ = Tensor::zeros({share}, dtype);
  gradient_share_ = Tensor::zeros({share_.size()}, gradient_dtype);
  if (options_.secondary) node_ = group_.node();
  node_part_ = divided_up(share_.size() * group_.size(), node_ ? node_.size() : 1);
  whole_ = node_part_ * (node_ ? node_.size() : 1);
}

std::vector<Tensor> ZeroUnit::views_of(const Tensor& flat) const {
  std::vector<Tensor> views;
  std::int64_t first = 0;
  for (const Shape& shape : shapes_) {
    views.push_back(flat.view(first, shape));
    first += elements_of(shape);
  }
  return views;
}

void ZeroUnit::adopt(const std::vector<Tensor>& whole) const {
  require(whole.size() == shapes_.size(), "A unit of {} tensors cannot take {}; give one for each shape.", shapes_.size(),
          whole.size());
  const std::int64_t begin = group_.rank() * share_.size();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Tensor& tensor = whole[i];
    require(tensor.shape() == shapes_[i] && tensor.dtype() == share_.dtype(),
            "Tensor {} of a unit is {} {}, but was given as {} {}.", i, name(share_.dtype()), shapes_[i],
            name(tensor.dtype()), tensor.shape());
    const std::int64_t from = std::max(begin, first);
    const std::int64_t count = std::min(begin + share_.size(), first + tensor.size()) - from;
    if (count > 0) share_.view(from - begin, {count}).copy_from(tensor.view(from - first, {count}));
    first += tensor.size();
  }
}

void ZeroUnit::begin_gather(const Stream& stream) {
  require(!flat_, "A unit of {} tensors is gathered already; release it first.", shapes_.size());
  flat_ = Tensor({whole_}, share_.dtype());
  values_ = views_of(flat_);
  stream.wait(last_gather_);  // forward's gather writes the second copy, which backward's gather reads
}

OperationOptions ZeroUnit::quantized(QuantizedFormat format, const Method& method, const char* tag) {
  OperationOptions options{.method = method, .tag = tag};
  options.quantization.format = format;
  return options;
}

Work ZeroUnit::gather_forward(const Stream& stream) {
  begin_gather(stream);
  const Call call{.collective = Collective::all_gather,
                  .input = share_.raw(),
                  .output = flat_.raw(),
                  .count = share_.size(),
                  .dtype = share_.dtype(),
                  .keep_alive = flat_};
  const Work gathered = group_.start(call, stream, quantized(options_.weights, options_.gather_by, "zero forward"));
  if (!node_) return last_gather_ = gathered;
  if (!secondary_) {
    secondary_ = Tensor({node_part_}, share_.dtype());
    stream.wait(computation());  // a GPU allocates in the order of computation(): the memory exists from this point on
  }
  return last_gather_ = stream.enqueue(
             [flat = flat_, kept = secondary_, filled = share_.size() * group_.size(), first = node_.rank() * node_part_] {
               // No rank has gathered the padding behind the last share.
               if (filled < flat.size()) flat.view(filled, {flat.size() - filled}).zero();
               kept.copy_from(flat.view(first, {kept.size()}));
             });
}

Work ZeroUnit::gather_backward(const Stream& stream) {
  if (!node_) return gather_forward(stream);
  require(bool(secondary_), "A unit of {} tensors keeps no second copy yet; gather it for forward first.", shapes_.size());
  begin_gather(stream);
  const Call call{.collective = Collective::all_gather,
                  .input = secondary_.raw(),
                  .output = flat_.raw(),
                  .count = node_part_,
                  .dtype = share_.dtype(),
                  .keep_alive = flat_};
  return last_gather_ = node_.start(call, stream, {.tag = "zero backward"});
}

void ZeroUnit::release() {
  flat_ = {};
  values_.clear();
}

const std::vector<Tensor>& ZeroUnit::gradients() {
  if (!flat_gradients_) {
    flat_gradients_ = Tensor::zeros({share_.size() * group_.size()}, gradient_share_.dtype());
    gradients_ = views_of(flat_gradients_);
  }
  return gradients_;
}

Work ZeroUnit::reduce_scatter(const Stream& stream) {
  gradients();
  const Call call{.collective = Collective::reduce_scatter,
                  .input = flat_gradients_.raw(),
                  .output = gradient_share_.raw(),
                  .count = share_.size(),
                  .dtype = gradient_share_.dtype(),
                  .op = ReduceOp::avg,
                  .keep_alive = flat_gradients_};
  const Work work = reduce_group_.start(call, stream, quantized(options_.gradients, options_.reduce_by, "zero gradients"));
  flat_gradients_ = {};
  gradients_.clear();
  return work;
}

}  // namespace stretto
