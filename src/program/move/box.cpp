#include "program/move/box.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "core/parts.hpp"

namespace stretto {

std::int64_t Box::elements() const {
  std::int64_t product = 1;
  for (std::size_t d = 0; d < begin.size(); ++d) product *= std::max<std::int64_t>(0, end[d] - begin[d]);
  return product;
}

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

std::optional<Box> common(const Box& a, const Box& b) {
  Box result = a;
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    result.begin[d] = std::max(a.begin[d], b.begin[d]);
    result.end[d] = std::min(a.end[d], b.end[d]);
  }
  return result.elements() > 0 ? std::optional(result) : std::nullopt;
}

bool contains(const Box& outer, const Box& inner) { return inner.elements() == 0 || common(outer, inner) == inner; }

std::string text(const Box& box) {
  std::string result;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    result += fmt::format("{}{}..{}", d == 0 ? "" : ", ", box.begin[d], box.end[d]);
  }
  return "[" + result + "]";
}

std::vector<Box> cut(const Box& box, int parts) {
  if (box.begin.empty() || parts <= 1) return {box};
  std::size_t along = 0;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    const std::int64_t extent = box.end[d] - box.begin[d], best = box.end[along] - box.begin[along];
    if (best < parts && extent > best) along = d;
  }
  const std::int64_t extent = box.end[along] - box.begin[along];
  const int count = static_cast<int>(std::min<std::int64_t>(extent, parts));
  std::vector<Box> result;
  for (int i = 0; i < count; ++i) {
    Box& part = result.emplace_back(box);
    part.begin[along] = box.begin[along] + part_begin(extent, count, i);
    part.end[along] = box.begin[along] + part_begin(extent, count, i + 1);
  }
  return result;
}

std::vector<Run> runs(const Box& outer, const Box& inner) {
  const std::size_t dimensions = outer.begin.size();
  if (inner.elements() == 0) return {};
  // Behind dimension `last`, both have all elements, so that a run goes on over it.
  std::size_t last = dimensions;
  std::int64_t count = 1;
  while (last > 0) {
    const std::size_t d = last - 1;
    count *= inner.end[d] - inner.begin[d];
    last = d;
    if (inner.begin[d] != outer.begin[d] || inner.end[d] != outer.end[d]) break;
  }
  std::int64_t number = 1;  // of runs
  for (std::size_t d = 0; d < last; ++d) number *= inner.end[d] - inner.begin[d];
  std::vector<Run> result;
  result.reserve(static_cast<std::size_t>(number));
  Shape index = inner.begin;
  for (std::int64_t i = 0; i < number; ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < dimensions; ++d) {
      offset = offset * (outer.end[d] - outer.begin[d]) + index[d] - outer.begin[d];
    }
    result.push_back({offset, count});
    for (std::size_t d = last; d-- > 0;) {
      if (++index[d] < inner.end[d]) break;
      index[d] = inner.begin[d];
    }
  }
  return result;
}

std::vector<Box> flat_range(const Box& box, std::int64_t first, std::int64_t last) {
  require(0 <= first && first <= last && last <= box.elements(), "Elements {} to {} are not all in a box of {}.", first,
          last, box.elements());
  std::vector<Box> result;
  while (first < last) {
    // The largest box of whole rows, planes, ... that begins at `first`.
    std::int64_t inside = 1;  // elements of one index of dimension d
    std::size_t d = box.begin.size();
    while (d > 0) {
      const std::int64_t more = inside * (box.end[d - 1] - box.begin[d - 1]);
      if (first % more != 0 || first + more > last) break;
      inside = more, --d;
    }
    Box& part = result.emplace_back(box);
    if (d == 0) break;  // all of it
    const std::int64_t extent = box.end[d - 1] - box.begin[d - 1];
    const std::int64_t at = first / inside % extent;
    const std::int64_t many = std::min(extent - at, (last - first) / inside);
    std::int64_t rest = first / inside;
    for (std::size_t e = d; e-- > 0;) {
      const std::int64_t size = box.end[e] - box.begin[e];
      part.begin[e] = box.begin[e] + rest % size;
      part.end[e] = part.begin[e] + 1;
      rest /= size;
    }
    part.end[d - 1] = part.begin[d - 1] + many;
    first += many * inside;
  }
  return result;
}

Division Division::replicated(const Shape& shape, std::vector<int> ranks) {
  const std::size_t number = ranks.size();
  return {std::move(ranks), std::vector<std::vector<Box>>(number, {whole(shape)})};
}

Division Division::along(std::size_t dimension, const Shape& shape, std::vector<int> ranks) {
  require(dimension < shape.size(), "A tensor of {} dimensions cannot be divided along dimension {}; the first is 0.",
          shape.size(), dimension);
  Division result{std::move(ranks), {}};
  const int parts = static_cast<int>(result.ranks.size());
  for (int i = 0; i < parts; ++i) {
    Box box = whole(shape);
    box.begin[dimension] = part_begin(shape[dimension], parts, i);
    box.end[dimension] = part_begin(shape[dimension], parts, i + 1);
    result.boxes.push_back({box});
  }
  return result;
}

std::int64_t Division::elements(int rank) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != rank) continue;
    for (const Box& box : boxes[i]) sum += box.elements();
  }
  return sum;
}

}  // namespace stretto
