#include "perf/buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "stretto/memory.hpp"

namespace perf {

namespace {

constexpr std::byte guard_value{0xa5};
// No result looks like this: it is a NaN in most floating-point types.
constexpr int nonsense = 0xff;

std::shared_ptr<std::byte> memory_of(Memory memory, std::int64_t bytes) {
  if (memory == Memory::symmetric) return stretto::allocate(bytes);
  auto* const block = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  if (block == nullptr) throw std::bad_alloc();
  return {block, [](std::byte* unused) { std::free(unused); }};
}

}  // namespace

Buffers::Buffers(const Case& test_case, int rank, bool in_place, int copies, Memory memory)
    : case_(test_case), rank_(rank), in_place_(in_place), copies_(copies) {
  const auto element = static_cast<std::int64_t>(size_of(test_case.dtype));
  const std::int64_t input_bytes = test_case.input_count(rank) * element;
  const std::int64_t output_bytes = test_case.output_count(rank) * element;
  if (in_place) {
    input_.offset = test_case.input_offset(rank) * element;
    output_.offset = test_case.output_offset(rank) * element;
    region_bytes_ = {std::max(input_.offset + input_bytes, output_.offset + output_bytes)};
  } else {
    output_.region = 1;
    region_bytes_ = {input_bytes, output_bytes};
  }
  for (int copy = 0; copy < copies; ++copy) {
    for (const std::int64_t bytes : region_bytes_) {
      const std::int64_t all = bytes + 2 * guard_bytes;
      if (memory == Memory::gpu) {
        on_gpu_.emplace_back(stretto::Shape{all}, stretto::DType::u8, stretto::Device::cuda);
        memory_.emplace_back(std::shared_ptr<std::byte>(), static_cast<std::byte*>(on_gpu_.back().raw()));
      } else {
        memory_.push_back(memory_of(memory, all));
      }
    }
  }
}

Buffers::OnHost Buffers::on_host(int copy) const {
  OnHost here;
  for (std::size_t region = 0; region < region_bytes_.size(); ++region) {
    if (on_gpu_.empty()) {
      here.begins.push_back(begin_of(copy, static_cast<int>(region)));
    } else {
      here.images.emplace_back(region_bytes_[region] + 2 * guard_bytes);
      here.begins.push_back(here.images.back().data() + guard_bytes);
    }
  }
  return here;
}

void Buffers::from_gpu(int copy, OnHost& here) const {
  for (std::size_t region = 0; region < here.images.size(); ++region) {
    on_gpu_[copy * region_bytes_.size() + region].copy_to_host(here.images[region].data());
  }
}

void Buffers::to_gpu(int copy, const OnHost& here) const {
  for (std::size_t region = 0; region < here.images.size(); ++region) {
    on_gpu_[copy * region_bytes_.size() + region].copy_from_host(here.images[region].data());
  }
}

void Buffers::fill(const Values& values) const {
  for (int copy = 0; copy < copies_; ++copy) {
    const OnHost here = on_host(copy);
    for (int region = 0; region < static_cast<int>(region_bytes_.size()); ++region) {
      const std::int64_t bytes = region_bytes_[region];
      std::fill_n(here.at({region, -guard_bytes}), guard_bytes, guard_value);
      std::memset(here.at({region, 0}), nonsense, bytes);
      std::fill_n(here.at({region, bytes}), guard_bytes, guard_value);
    }
    values.fill({rank_, 0, case_.input_count(rank_)}, here.at(input_));
    to_gpu(copy, here);
  }
}

std::int64_t Buffers::wrong(const Values& values, Deviation& deviation) const {
  const std::size_t element = size_of(case_.dtype);
  std::int64_t wrong = 0;
  for (int copy = 0; copy < copies_; ++copy) {
    OnHost here = on_host(copy);
    from_gpu(copy, here);
    const std::byte* found = here.at(output_);
    for (const SourceRange& part : case_.expected(rank_)) {
      wrong += values.wrong_results(part, found, deviation);
      found += part.count * element;
    }
    if (!in_place_ || case_.output_count(rank_) == 0) {
      wrong += values.wrong({rank_, 0, case_.input_count(rank_)}, here.at(input_));
    }
    for (int region = 0; region < static_cast<int>(region_bytes_.size()); ++region) {
      for (const std::int64_t from : {-guard_bytes, region_bytes_[region]}) {
        const std::byte* const guard = here.at({region, from});
        wrong += guard_bytes - std::count(guard, guard + guard_bytes, guard_value);
      }
    }
  }
  return wrong;
}

}  // namespace perf
