#include "layers/checkpoint/foreign_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/fail.hpp"
#include "layers/checkpoint/files/safetensors.hpp"

namespace stretto {
namespace {

// The tensor's row that a block has as its row i.
std::int64_t stored_row(const ForeignRows& block, std::int64_t i) {
  if (block.order == RowOrder::same) return block.first + i;
  const std::int64_t half = block.count / 2;
  return block.first + (i < half ? 2 * i : 2 * (i - half) + 1);
}

std::int64_t first_extent(const Shape& shape) { return shape.empty() ? 1 : shape.front(); }
std::int64_t other_extents(const Shape& shape) {
  std::int64_t product = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) product *= shape[d];
  return product;
}

}  // namespace

std::int64_t ForeignTensor::rows() const { return transposed ? other_extents(shape) : first_extent(shape); }
std::int64_t ForeignTensor::columns() const { return transposed ? first_extent(shape) : other_extents(shape); }

std::vector<ForeignRows> first_rows(const Parameter& parameter, const ForeignTensor& tensor) {
  const std::int64_t elements = elements_of(parameter.global_shape), columns = tensor.columns();
  return {{tensor, 0, columns > 0 ? elements / columns : 0}};
}

ForeignLayout::ForeignLayout(const Parameter& parameter, std::vector<ForeignRows> blocks)
    : name_(parameter.name), blocks_(std::move(blocks)) {
  require(!blocks_.empty(), "No rows are named for {}; name those of a tensor.", name_);
  columns_ = blocks_.front().tensor.columns();
  std::int64_t rows = 0;
  for (const ForeignRows& block : blocks_) {
    const ForeignTensor& tensor = block.tensor;
    require(tensor.columns() == columns_, "{} cannot consist of rows of {} columns of {}, and of {} columns of {}.", name_,
            columns_, blocks_.front().tensor.name, tensor.columns(), tensor.name);
    require(block.first >= 0 && block.count >= 0 && block.count <= tensor.rows() - block.first,
            "{} cannot have the rows {} to {} of {} of [{}], which has {}.", name_, block.first, block.first + block.count,
            tensor.name, fmt::join(tensor.shape, ", "), tensor.rows());
    require(block.order == RowOrder::same || block.count % 2 == 0,
            "{} rows of {} for {} cannot be interleaved; name an even number.", block.count, tensor.name, name_);
    const auto known = std::ranges::find(tensors_, tensor.name, &ForeignTensor::name);
    require(known == tensors_.end() || *known == tensor, "{} has rows of {} in two shapes; give it one.", name_,
            tensor.name);
    tensor_of_.push_back(static_cast<std::size_t>(known - tensors_.begin()));
    if (known == tensors_.end()) tensors_.push_back(tensor);
    begins_.push_back(rows);
    rows += block.count;
  }
  const Shape& shape = parameter.global_shape;
  require(columns_ > 0 && rows * columns_ == elements_of(shape), "{} rows of {} columns of {} do not make {} of [{}].", rows,
          columns_, tensors_.front().name, name_, fmt::join(shape, ", "));
}

void ForeignLayout::append_runs(std::int64_t first, std::int64_t count, std::int64_t to, std::vector<Run>& runs) const {
  while (count > 0) {
    const auto behind = std::ranges::upper_bound(begins_, first / columns_);
    const auto index = static_cast<std::size_t>(behind - begins_.begin()) - 1;
    const ForeignRows& block = blocks_[index];
    const std::int64_t within = first - begins_[index] * columns_, column = within % columns_;
    const bool by_row = block.order != RowOrder::same || block.tensor.transposed;
    const std::int64_t most = by_row ? columns_ - column : block.count * columns_ - within;
    const Run run{tensor_of_[index], stored_row(block, within / columns_) * columns_ + column, to, std::min(count, most)};
    runs.push_back(run);
    first += run.count;
    to += run.count;
    count -= run.count;
  }
}

void ForeignLayout::require_whole_tensors() const {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    std::vector<int> times(static_cast<std::size_t>(tensors_[t].rows()));
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (tensor_of_[b] != t) continue;
      for (std::int64_t i = 0; i < blocks_[b].count; ++i) ++times[static_cast<std::size_t>(blocks_[b].first + i)];
    }
    const auto wrong = std::ranges::find_if(times, [](int each) { return each != 1; });
    require(wrong == times.end(), "{} has row {} of {} {} times, so that the tensor cannot be written.", name_,
            wrong - times.begin(), tensors_[t].name, wrong == times.end() ? 1 : *wrong);
  }
}

}  // namespace stretto
