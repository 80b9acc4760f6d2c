#include "layers/tensor_parallel/own_rows.hpp"

#include <numeric>
#include <utility>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// A weight of one part has no dimension for parts.
Parameter divided(const std::string& name, Shape shape, int parts, const Parameter::Traits& traits,
                  const TensorParallel& parallel) {
  const std::size_t dimension = parts > 1 ? 1 : 0;
  return Parameter::divided(name, shape, dimension, parallel.size(), parallel.rank(), traits);
}

// The matrices of a record whose rows are `begin` to `end` of all.
std::vector<std::int64_t> matrices_between(const std::vector<std::int64_t>& matrices, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> result;
  std::int64_t at = 0;
  for (const std::int64_t rows : matrices) {
    if (at >= begin && at + rows <= end) result.push_back(rows);
    at += rows;
  }
  return result;
}

}  // namespace

// Ranks of one head divide the first parts of it, and hold the last ones whole, of all heads: so all copies are summed over
// the tensor axis as a norm's gradient is, where the axes of a mesh know no group of ranks within it.
OwnRows::OwnRows(Parameters& parameters, const std::string& name, Shape shape, int parts, const CopiedParts& copied,
                 const Parameter::Traits& traits, const TensorParallel& parallel) {
  if (!copied.by(parallel.size())) {
    records_ = {&parameters.add(divided(name, shape, parts, traits, parallel))};
    return;
  }
  const int first_parts = parts - copied.count;
  const bool divides = copied.heads >= 1 && parallel.size() % copied.heads == 0 && first_parts >= 1 &&
                       shape[1] % copied.heads == 0 && first_parts % (parallel.size() / copied.heads) == 0;
  require(
      divides,
      "{} of {} parts, the last {} of {} heads each, does not divide over {} ranks; choose a multiple or a divisor of the "
      "heads, whose ranks divide the other parts.",
      name, parts, copied.count, copied.heads, parallel.size());
  const auto sharing = static_cast<int>(parallel.size() / copied.heads);
  const std::int64_t width = shape[1], size = width / copied.heads, head = parallel.rank() / sharing;
  const std::int64_t columns = std::accumulate(shape.begin() + 2, shape.end(), std::int64_t{1}, std::multiplies<>());

  Parameter own = Parameter::divided(name, shape, 0, 1, 0, traits);
  own.name += ".divided";
  own.part_of = name;
  own.portion = {0, first_parts};
  own.extents[0] = first_parts / sharing;
  own.first[0] = parallel.rank() % sharing * own.extents[0];
  own.first[1] = head * size;
  own.extents[1] = size;
  own.matrices = matrices_between(traits.matrices, 0, first_parts * width);

  Parameter whole = Parameter::whole(name, shape, token_axes | Axis::tensor, traits);
  whole.name += ".copied";
  whole.part_of = name;
  whole.portion = {first_parts, copied.count};
  whole.first[0] = first_parts;
  whole.extents[0] = copied.count;
  whole.matrices = matrices_between(traits.matrices, first_parts * width, parts * width);
  whole.overwrites_gradient = false;  // other heads' stays 0

  rows_ = own.extents[0] * size;
  pieces_.push_back({0, 0, 0, rows_ * columns});
  for (int part = 0; part < copied.count; ++part) {
    pieces_.push_back({1, (part * width + head * size) * columns, rows_ * columns, size * columns});
    rows_ += size;
  }
  records_ = {&parameters.add(std::move(own)), &parameters.add(std::move(whole))};
}

std::int64_t OwnRows::elements() const {
  std::int64_t sum = 0;
  for (const Parameter* record : records_) sum += record->elements();
  return sum;
}

Shape OwnRows::shape() const {
  const std::int64_t all = pieces_.back().to + pieces_.back().count;
  return all == rows_ ? Shape{rows_} : Shape{rows_, all / rows_};
}

Tensor OwnRows::value() const {
  if (!any()) return {};
  if (!is_copied()) return records_.front()->value;
  const MemoryScope scratch(MemoryKind::other);
  Tensor result(shape(), records_.front()->value.dtype());
  as_kernel("copy", [&] {
    for (const Piece& piece : pieces_) {
      result.view(piece.to, {piece.count}).copy_from(records_[piece.record]->value.view(piece.from, {piece.count}));
    }
  });
  return result;
}

void OwnRows::add_gradient(const std::function<void(const Tensor& gradient, bool accumulates)>& add) const {
  if (!trainable()) return;
  if (!is_copied()) {
    const bool overwrite = records_.front()->take_unset();
    add(records_.front()->gradient, !overwrite);
    return;
  }
  const MemoryScope scratch(MemoryKind::other);
  const Tensor sum(shape(), records_.front()->gradient.dtype());
  add(sum, false);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const bool overwrite = records_[i]->take_unset();
    for (const Piece& piece : pieces_) {
      if (piece.record != i) continue;
      const Tensor from = sum.view(piece.to, {piece.count}), to = records_[i]->gradient.view(piece.from, {piece.count});
      if (overwrite) {
        as_kernel("copy", [&] { to.copy_from(from); });
      } else {
        kernels::add(to, from, to);
      }
    }
  }
}

}  // namespace stretto
