#include "buffers.hpp"

#include <algorithm>
#include <cstring>

namespace perf {

namespace {

constexpr std::int64_t guard_bytes = 64;
constexpr std::byte guard_value{0xa5};
// No result looks like this for long: a NaN in most floating-point types.
constexpr int nonsense = 0xff;

constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Buffers::Buffers(const Case& of, int rank, bool in_place, int copies)
    : case_(of), rank_(rank), in_place_(in_place), copies_(copies) {
  const auto element = static_cast<std::int64_t>(size_of(of.dtype));
  const std::int64_t input_bytes = of.input_count(rank) * element;
  const std::int64_t output_bytes = of.output_count(rank) * element;
  if (in_place) {
    input_at_ = guard_bytes + of.input_offset(rank) * element;
    output_at_ = guard_bytes + of.output_offset(rank) * element;
    regions_ = {{guard_bytes, std::max(input_at_ + input_bytes, output_at_ + output_bytes) - guard_bytes}};
  } else {
    input_at_ = guard_bytes;
    output_at_ = aligned(input_at_ + input_bytes + guard_bytes) + guard_bytes;
    regions_ = {{input_at_, input_bytes}, {output_at_, output_bytes}};
  }
  copy_bytes_ = aligned(regions_.back().first + regions_.back().bytes + guard_bytes);
  memory_ = stretto::Tensor({copies * copy_bytes_}, stretto::DType::u8);
}

std::byte* Buffers::at(int copy, std::int64_t offset) const {
  return static_cast<std::byte*>(memory_.raw()) + copy * copy_bytes_ + offset;
}

void Buffers::fill(const Values& values) const {
  for (int copy = 0; copy < copies_; ++copy) {
    for (const Region& region : regions_) {
      std::fill_n(at(copy, region.first - guard_bytes), guard_bytes, guard_value);
      std::memset(at(copy, region.first), nonsense, region.bytes);
      std::fill_n(at(copy, region.first + region.bytes), guard_bytes, guard_value);
    }
    values.fill({rank_, 0, case_.input_count(rank_)}, at(copy, input_at_));
  }
}

std::int64_t Buffers::wrong(const Values& values) const {
  const std::size_t element = size_of(case_.dtype);
  std::int64_t wrong = 0;
  for (int copy = 0; copy < copies_; ++copy) {
    const auto* found = static_cast<const std::byte*>(output(copy));
    for (const Part& part : case_.expected(rank_)) {
      wrong += values.wrong(part, found);
      found += part.count * element;
    }
    if (!in_place_ || case_.output_count(rank_) == 0) {
      wrong += values.wrong({rank_, 0, case_.input_count(rank_)}, input(copy));
    }
    for (const Region& region : regions_) {
      for (const std::int64_t from : {region.first - guard_bytes, region.first + region.bytes}) {
        wrong += guard_bytes - std::count(at(copy, from), at(copy, from) + guard_bytes, guard_value);
      }
    }
  }
  return wrong;
}

}  // namespace perf
