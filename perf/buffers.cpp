#include "buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "stretto/memory.hpp"

namespace perf {

namespace {

constexpr std::int64_t guard_bytes = 64;
constexpr std::byte guard_value{0xa5};
// No result looks like this for long: a NaN in most floating-point types.
constexpr int nonsense = 0xff;

std::shared_ptr<std::byte> memory_of(Memory memory, std::int64_t bytes) {
  if (memory == Memory::symmetric) return stretto::allocate(bytes);
  auto* const block = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  if (block == nullptr) throw std::bad_alloc();
  return {block, [](std::byte* unused) { std::free(unused); }};
}

}  // namespace

Buffers::Buffers(const Case& of, int rank, bool in_place, int copies, Memory memory)
    : case_(of), rank_(rank), in_place_(in_place), copies_(copies) {
  const auto element = static_cast<std::int64_t>(size_of(of.dtype));
  const std::int64_t input_bytes = of.input_count(rank) * element;
  const std::int64_t output_bytes = of.output_count(rank) * element;
  if (in_place) {
    input_.offset = of.input_offset(rank) * element;
    output_.offset = of.output_offset(rank) * element;
    region_bytes_ = {std::max(input_.offset + input_bytes, output_.offset + output_bytes)};
  } else {
    output_.region = 1;
    region_bytes_ = {input_bytes, output_bytes};
  }
  for (int copy = 0; copy < copies; ++copy) {
    for (const std::int64_t bytes : region_bytes_) memory_.push_back(memory_of(memory, bytes + 2 * guard_bytes));
  }
}

std::byte* Buffers::at(int copy, Place place) const {
  return memory_[copy * region_bytes_.size() + place.region].get() + guard_bytes + place.offset;
}

void Buffers::fill(const Values& values) const {
  for (int copy = 0; copy < copies_; ++copy) {
    for (int region = 0; region < static_cast<int>(region_bytes_.size()); ++region) {
      const std::int64_t bytes = region_bytes_[region];
      std::fill_n(at(copy, {region, -guard_bytes}), guard_bytes, guard_value);
      std::memset(at(copy, {region, 0}), nonsense, bytes);
      std::fill_n(at(copy, {region, bytes}), guard_bytes, guard_value);
    }
    values.fill({rank_, 0, case_.input_count(rank_)}, at(copy, input_));
  }
}

std::int64_t Buffers::wrong(const Values& values, Deviation& deviation) const {
  const std::size_t element = size_of(case_.dtype);
  std::int64_t wrong = 0;
  for (int copy = 0; copy < copies_; ++copy) {
    const auto* found = static_cast<const std::byte*>(output(copy));
    for (const Part& part : case_.expected(rank_)) {
      wrong += values.wrong_results(part, found, deviation);
      found += part.count * element;
    }
    if (!in_place_ || case_.output_count(rank_) == 0) {
      wrong += values.wrong({rank_, 0, case_.input_count(rank_)}, input(copy));
    }
    for (int region = 0; region < static_cast<int>(region_bytes_.size()); ++region) {
      for (const std::int64_t from : {-guard_bytes, region_bytes_[region]}) {
        const std::byte* const guard = at(copy, {region, from});
        wrong += guard_bytes - std::count(guard, guard + guard_bytes, guard_value);
      }
    }
  }
  return wrong;
}

}  // namespace perf
