#include "stretto/overlap/flat_tensors.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto {

FlatTensors::FlatTensors(std::vector<Tensor> members) : members_(std::move(members)) {
  require(!members_.empty(), "A vector of no tensors has no type; give at least one.");
  const Tensor* head = nullptr;
  const Tensor* before = nullptr;
  std::int64_t elements = 0;
  for (const Tensor& member : members_) {
    require(member.dtype() == members_.front().dtype(), "One vector cannot hold {} beside {}.", name(member.dtype()),
            name(members_.front().dtype()));
    elements += member.size();
    if (member.size() == 0) continue;  // an empty member's address does not matter
    if (before != nullptr && !before->continues_in(member)) in_place_ = false;
    if (head == nullptr) head = &member;
    before = &member;
  }
  if (head == nullptr) {
    flat_ = members_.front().view(0, {0});
  } else {
    flat_ = in_place_ ? head->spanning(elements) : Tensor::symmetric({elements}, head->dtype());
  }
}

void FlatTensors::pack(std::int64_t first, std::int64_t count) const {
  if (in_place_) return;
  const KernelScope scope("pack");
  if (scope.skipped()) return;
  std::int64_t at = first;
  for (const ElementRange& range : ranges(first, count)) {
    flat_.view(at, {range.count}).copy_from(members_[range.tensor].view(range.first, {range.count}));
    at += range.count;
  }
}

void FlatTensors::unpack(std::int64_t first, std::int64_t count) const {
  if (in_place_) return;
  const KernelScope scope("unpack");
  if (scope.skipped()) return;
  std::int64_t at = first;
  for (const ElementRange& range : ranges(first, count)) {
    members_[range.tensor].view(range.first, {range.count}).copy_from(flat_.view(at, {range.count}));
    at += range.count;
  }
}

std::vector<ElementRange> FlatTensors::ranges(std::int64_t first, std::int64_t count) const {
  std::vector<ElementRange> result;
  std::int64_t begin = 0;  // the member's first element in the flat vector
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::int64_t from = std::max(first, begin);
    const std::int64_t to = std::min(first + count, begin + members_[i].size());
    if (from < to) result.push_back({i, from - begin, to - from});
    begin += members_[i].size();
  }
  return result;
}

}  // namespace stretto
